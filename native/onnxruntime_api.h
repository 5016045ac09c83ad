// The part of ONNX Runtime's C interface that operators.cpp uses, in place of onnxruntime_c_api.h, which no Python package
// carries. OrtApi is append-only: a function keeps its place for ever. Places and signatures are those of version 17, the
// first with KernelContext_ParallelFor; tests run them on the oldest and the newest onnxruntime that pyproject.toml admits.
#pragma once
#include <cstddef>
#include <cstdint>

struct OrtStatus;
struct OrtValue;
struct OrtKernelContext;
struct OrtKernelInfo;
struct OrtCustomOpDomain;
struct OrtSessionOptions;
struct OrtTensorTypeAndShapeInfo;
struct OrtCustomOp;

constexpr uint32_t kOrtApiVersion = 17;
enum OrtErrorCode { ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2 };
enum ONNXTensorElementDataType {
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32 = 6,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 = 7,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16 = 16,
};
enum OrtCustomOpInputOutputCharacteristic { INPUT_OUTPUT_REQUIRED = 0, INPUT_OUTPUT_OPTIONAL = 1 };
enum OrtMemType { OrtMemTypeDefault = 0 };

struct OrtApi {  // unnamed places: functions that are not used
  OrtStatus* (*CreateStatus)(OrtErrorCode, const char*);
  void* unused_1[25];
  OrtStatus* (*CreateCustomOpDomain)(const char*, OrtCustomOpDomain**);
  OrtStatus* (*CustomOpDomain_Add)(OrtCustomOpDomain*, const OrtCustomOp*);
  OrtStatus* (*AddCustomOpDomain)(OrtSessionOptions*, OrtCustomOpDomain*);
  void* unused_29[22];
  OrtStatus* (*GetTensorMutableData)(OrtValue*, void**);
  void* unused_52[9];
  OrtStatus* (*GetDimensionsCount)(const OrtTensorTypeAndShapeInfo*, size_t*);
  OrtStatus* (*GetDimensions)(const OrtTensorTypeAndShapeInfo*, int64_t*, size_t);
  void* unused_63[2];
  OrtStatus* (*GetTensorTypeAndShape)(const OrtValue*, OrtTensorTypeAndShapeInfo**);
  void* unused_66[19];
  OrtStatus* (*KernelInfoGetAttribute_float)(const OrtKernelInfo*, const char*, float*);
  OrtStatus* (*KernelInfoGetAttribute_int64)(const OrtKernelInfo*, const char*, int64_t*);
  void* unused_87[1];
  OrtStatus* (*KernelContext_GetInputCount)(const OrtKernelContext*, size_t*);
  void* unused_89[1];
  OrtStatus* (*KernelContext_GetInput)(const OrtKernelContext*, size_t, const OrtValue**);
  OrtStatus* (*KernelContext_GetOutput)(OrtKernelContext*, size_t, const int64_t*, size_t, OrtValue**);
  void* unused_92[7];
  void (*ReleaseTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo*);
  void* unused_100[174];
  OrtStatus* (*KernelContext_ParallelFor)(const OrtKernelContext*, void (*)(void*, size_t), size_t, size_t, void*);
};

struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t);
  const char* (*GetVersionString)();
};

struct OrtCustomOp {  // as of version 17
  uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);
  const char* (*GetName)(const OrtCustomOp*);
  const char* (*GetExecutionProviderType)(const OrtCustomOp*);
  ONNXTensorElementDataType (*GetInputType)(const OrtCustomOp*, size_t);
  size_t (*GetInputTypeCount)(const OrtCustomOp*);
  ONNXTensorElementDataType (*GetOutputType)(const OrtCustomOp*, size_t);
  size_t (*GetOutputTypeCount)(const OrtCustomOp*);
  void (*KernelCompute)(void*, OrtKernelContext*);
  void (*KernelDestroy)(void*);
  OrtCustomOpInputOutputCharacteristic (*GetInputCharacteristic)(const OrtCustomOp*, size_t);
  OrtCustomOpInputOutputCharacteristic (*GetOutputCharacteristic)(const OrtCustomOp*, size_t);
  OrtMemType (*GetInputMemoryType)(const OrtCustomOp*, size_t);
  int (*GetVariadic[4])(const OrtCustomOp*);
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void**);
  OrtStatus* (*KernelComputeV2)(void*, OrtKernelContext*);
  OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp*, void*);
  int (*GetStartVersion)(const OrtCustomOp*);
  int (*GetEndVersion)(const OrtCustomOp*);
  void* inplace[4];
};
