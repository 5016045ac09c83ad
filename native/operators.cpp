// The operators as ONNX Runtime sees them: shapes checked, outputs asked for, work given to its threads.
//
// Whatever a graph or a caller gets wrong is thrown as a Refusal and becomes a status that names the operator; nothing is
// thrown past this file, and nothing is thrown on ONNX Runtime's threads.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <new>

#include "kernels.h"
#include "onnxruntime_api.h"

namespace samevec {
namespace {

const OrtApi* api;
constexpr size_t kMaxInputs = 6, kMaxRank = 8;
constexpr int64_t kMaxSize = INT32_MAX;  // of an axis, and of the rows of a matrix

struct Refusal {
  OrtErrorCode code;
  const char* words;
};
struct Failed {
  OrtStatus* status;
};

void check(OrtStatus* status) {
  if (status) throw Failed{status};
}
void require(bool good, const char* words) {
  if (!good) throw Refusal{ORT_INVALID_ARGUMENT, words};
}
void require_memory(bool had) {
  if (!had) throw Refusal{ORT_FAIL, "failed to allocate work memory"};
}

int64_t product_of(const int64_t* sizes, size_t n) {
  int64_t all = 1;
  for (size_t i = 0; i < n; i++) {
    require(sizes[i] >= 0 && sizes[i] <= kMaxSize, "an axis is too long");
    require(!__builtin_mul_overflow(all, sizes[i], &all), "the sizes of a tensor overflow");
  }
  return all;
}

// A tensor that an operator was given. `at` is null where an optional one is absent.
struct Tensor {
  const void* at = nullptr;
  size_t rank = 0;
  int64_t sizes[kMaxRank] = {};

  explicit operator bool() const { return at != nullptr; }
  const float* floats() const { return (const float*)at; }
  const int32_t* int32s() const { return (const int32_t*)at; }
  const int64_t* int64s() const { return (const int64_t*)at; }
  int64_t last() const { return sizes[rank - 1]; }
  int64_t rows() const { return product_of(sizes, rank - 1); }  // as a matrix
  bool is_vector(int64_t n) const { return rank == 1 && sizes[0] == n; }
};

struct Attributes {
  int64_t columns = 0, heads = 0, kv_heads = 0, causal = 0, window = -1;
  float epsilon = 0;
};

// One computation: what it is given, what it gives, threads.
class Call {
 public:
  Call(const Attributes& attributes, OrtKernelContext* context) : attributes(attributes), context_(context) {
    check(api->KernelContext_GetInputCount(context, &n_inputs_));
    kernels = find_kernels();
  }

  Tensor input(size_t i) const {
    Tensor tensor;
    if (i >= n_inputs_) return tensor;
    const OrtValue* value = nullptr;
    check(api->KernelContext_GetInput(context_, i, &value));
    if (!value) return tensor;
    OrtTensorTypeAndShapeInfo* info = nullptr;
    check(api->GetTensorTypeAndShape(value, &info));
    OrtStatus* status = api->GetDimensionsCount(info, &tensor.rank);
    const bool known = !status && tensor.rank >= 1 && tensor.rank <= kMaxRank;
    if (known) status = api->GetDimensions(info, tensor.sizes, tensor.rank);
    api->ReleaseTensorTypeAndShapeInfo(info);
    check(status);
    require(known, "a tensor must have 1 to 8 axes");
    product_of(tensor.sizes, tensor.rank);
    void* at = nullptr;
    check(api->GetTensorMutableData(const_cast<OrtValue*>(value), &at));
    static const int64_t empty = 0;  // a tensor without elements may have no address
    tensor.at = at ? at : &empty;
    return tensor;
  }

  void* output(size_t i, const int64_t* sizes, size_t rank) const {
    OrtValue* value = nullptr;
    check(api->KernelContext_GetOutput(context_, i, sizes, rank, &value));
    void* at = nullptr;
    check(api->GetTensorMutableData(value, &at));
    return at;
  }
  float* output_like(size_t i, const Tensor& tensor) const { return (float*)output(i, tensor.sizes, tensor.rank); }

  // Runs `task(i)` for i below n on the session's threads. A task must not throw. Threads that compute otherwise, as those
  // of a session that flushes denormals, are refused.
  template <typename Task>
  void parallel(int64_t n, const Task& task) const {
    if (n == 1) return task((size_t)0);
    if (n <= 0) return;
    struct Shared {
      const Task& task;
      std::atomic<const char*> problem;
    } shared{task, {nullptr}};
    auto run = [](void* data, size_t i) {
      Shared& shared = *(Shared*)data;
      if (const char* problem = float_environment_problem()) shared.problem = problem;
      else shared.task(i);
    };
    check(api->KernelContext_ParallelFor(context_, run, (size_t)n, 0, &shared));
    const char* problem = shared.problem;
    require(!problem, problem);
  }
  // The same for a task that may have found no memory and says so.
  template <typename Task>
  void parallel_with_memory(int64_t n, const Task& task) const {
    std::atomic<bool> had{true};
    parallel(n, [&](size_t i) {
      if (!task(i)) had = false;
    });
    require_memory(had);
  }

  const Attributes& attributes;
  const Kernels* kernels;

 private:
  OrtKernelContext* context_;
  size_t n_inputs_ = 0;
};

// Where each row's tokens lie: [rows + 1], ascending from 0 to `total`, no row empty.
int row_count(const Tensor& offsets, int64_t total) {
  require(offsets.rank == 1 && offsets.sizes[0] >= 1, "offsets must be one axis of at least one");
  const int rows = (int)(offsets.sizes[0] - 1);
  require(offsets.int32s()[0] == 0 && offsets.int32s()[rows] == total, "offsets do not span the tokens");
  for (int r = 0; r < rows; r++) require(offsets.int32s()[r] < offsets.int32s()[r + 1], "offsets must ascend");
  return rows;
}

// Every graph begins with this operator, on the thread that runs it: the place to ask how that thread computes.
void offsets(const Call& call) {
  const char* problem = float_environment_problem();
  require(!problem, problem);
  const Tensor mask = call.input(0);
  require(mask.rank == 2, "the mask must be [rows, tokens]");
  const int64_t rows = mask.sizes[0], tokens = mask.sizes[1], size = rows + 1;
  require(product_of(mask.sizes, 2) <= kMaxSize, "too many tokens");
  int32_t* to = (int32_t*)call.output(0, &size, 1);
  to[0] = 0;
  for (int64_t r = 0; r < rows; r++) {
    const int64_t* row = mask.int64s() + r * tokens;
    int64_t length = 0;
    while (length < tokens && row[length] == 1) length++;
    for (int64_t i = length; i < tokens; i++) require(row[i] == 0, "the mask must be ones followed by zeros: padding is on the right");
    require(length > 0, "a row of the mask has no token");
    to[r + 1] = to[r] + (int32_t)length;
  }
}

void unpad(const Call& call) {
  const Tensor ids = call.input(0), offsets = call.input(1);
  require(ids.rank == 2 && offsets.rank == 1 && offsets.sizes[0] == ids.sizes[0] + 1, "ids must be [rows, tokens], offsets [rows + 1]");
  const int64_t total = offsets.int32s()[ids.sizes[0]], tokens = ids.sizes[1];
  const int rows = row_count(offsets, total);
  for (int r = 0; r < rows; r++) require(offsets.int32s()[r + 1] - offsets.int32s()[r] <= tokens, "a row is longer than its ids");
  int64_t* to = (int64_t*)call.output(0, &total, 1);
  for (int r = 0; r < rows; r++) {
    const int32_t begin = offsets.int32s()[r], end = offsets.int32s()[r + 1];
    memcpy(to + begin, ids.int64s() + r * tokens, 8 * (size_t)(end - begin));
  }
}

void positions(const Call& call) {
  const Tensor offsets = call.input(0);
  require(offsets.rank == 1 && offsets.sizes[0] >= 1, "offsets must be one axis of at least one");
  const int64_t total = offsets.int32s()[offsets.sizes[0] - 1];
  const int rows = row_count(offsets, total);
  int64_t* to = (int64_t*)call.output(0, &total, 1);
  for (int r = 0; r < rows; r++)
    for (int32_t i = offsets.int32s()[r]; i < offsets.int32s()[r + 1]; i++) *to++ = i - offsets.int32s()[r];
}

template <int WORDS>
void matmul(const Call& call) {
  const Tensor x = call.input(0), w = call.input(1), bias = call.input(2);
  const int64_t n = call.attributes.columns, k = x.last(), m = x.rows();
  require(w.rank == 3 && w.sizes[2] == kPanelColumns, "the weight must be panels [n, k, 32]");
  require(n >= 1 && n <= kMaxSize - kPanelColumns && (n + kPanelColumns - 1) / kPanelColumns == w.sizes[0], "columns do not match the panels");
  require(k == w.sizes[1], "x and the weight have different inner axes");
  require(k >= 1, "the inner axis is empty");
  require(!bias || bias.is_vector(n), "the bias must have one value for each column");
  int64_t sizes[kMaxRank];
  memcpy(sizes, x.sizes, sizeof sizes);
  sizes[x.rank - 1] = n;
  product_of(sizes, x.rank);
  require(m <= kMaxSize, "too many rows");
  float* y = (float*)call.output(0, sizes, x.rank);
  if (m == 0) return;
  const ProductCall product = make_product(call.kernels, WORDS, x.floats(), (const uint32_t*)w.at, bias.floats(), y, m, (int)k, (int)n);
  call.parallel_with_memory(product.tasks(), [&](size_t i) { return run_product_task(product, (int64_t)i); });
}

// Elements of one task of what is done element by element: enough that handing it out costs little.
constexpr int64_t kTaskElements = 16384;

template <Norm KIND, bool ADDS>
void norm(const Call& call) {
  const Tensor x = call.input(0), residual = ADDS ? call.input(1) : Tensor();
  const Tensor g = call.input(ADDS ? 2 : 1), b = KIND == Norm::layer ? call.input(ADDS ? 3 : 2) : Tensor();
  const int64_t n = x.last(), rows = x.rows();
  require(n >= 32 && n % 32 == 0, "the width must be a multiple of 32");
  require(!ADDS || (residual.rank == x.rank && !memcmp(residual.sizes, x.sizes, sizeof x.sizes)), "x and residual have different shapes");
  require(g.is_vector(n) && (!b || b.is_vector(n)), "weight and bias must be as long as the last axis");
  NormCall norm{KIND, x.floats(), residual.floats(), g.floats(), b.floats(), call.output_like(0, x), ADDS ? call.output_like(1, x) : nullptr, rows, (int)n, call.attributes.epsilon};
  const int64_t each = kTaskElements / n + 1;
  call.parallel((rows + each - 1) / each, [&](size_t i) {
    for (int64_t r = (int64_t)i * each; r < rows && r < ((int64_t)i + 1) * each; r++) call.kernels->norm(norm, r);
  });
}

template <Gate KIND>
void activation(const Call& call) {
  const Tensor x = call.input(0);
  const int64_t n = x.rows() * x.last();
  float* y = call.output_like(0, x);
  call.parallel((n + kTaskElements - 1) / kTaskElements, [&](size_t i) {
    const int64_t at = (int64_t)i * kTaskElements, here = n - at < kTaskElements ? n - at : kTaskElements;
    call.kernels->gate(KIND, x.floats() + at, nullptr, y + at, here);
  });
}

template <Gate KIND>
void gated(const Call& call) {
  const Tensor x = call.input(0);
  require(x.last() >= 2 && x.last() % 2 == 0, "the last axis must have two equal halves");
  const int64_t n = x.last() / 2, rows = x.rows();
  int64_t sizes[kMaxRank];
  memcpy(sizes, x.sizes, sizeof sizes);
  sizes[x.rank - 1] = n;
  float* y = (float*)call.output(0, sizes, x.rank);
  const int64_t each = kTaskElements / n + 1;
  call.parallel((rows + each - 1) / each, [&](size_t i) {
    for (int64_t r = (int64_t)i * each; r < rows && r < ((int64_t)i + 1) * each; r++)
      call.kernels->gate(KIND, x.floats() + r * 2 * n, x.floats() + r * 2 * n + n, y + r * n, n);
  });
}

constexpr int kUnitTokens = 128;                  // texts up to this length are one task for each key head
constexpr int64_t kPackedFloats = (16 << 20) / 4;  // keys and values packed at a time, in longer ones

AttentionCall make_attention(const Call& call) {
  const Attributes& a = call.attributes;
  const Tensor qkv = call.input(0), offsets = call.input(1), cos = call.input(2), sin = call.input(3), gq = call.input(4), gk = call.input(5);
  require(a.heads >= 1 && a.heads <= kMaxSize / 4 && a.kv_heads >= 1 && a.kv_heads <= a.heads, "heads and kv_heads must be positive");
  require(a.heads % a.kv_heads == 0 && a.heads / a.kv_heads <= kLanes, "heads must be a multiple of kv_heads, at most 32 times");
  const int64_t all = a.heads + 2 * a.kv_heads;
  require(qkv.rank == 2 && qkv.sizes[1] % all == 0, "qkv must be [tokens, (heads + 2 kv_heads) * size]");
  const int64_t d = qkv.sizes[1] / all, total = qkv.sizes[0];
  require(d >= 32 && d % 32 == 0 && d <= kMaxHeadSize, "the head size must be 32, 64, 96 or 128");
  require((a.causal == 0 || a.causal == 1) && a.window >= -1 && a.window <= kMaxSize, "causal must be 0 or 1, window -1 or more");
  const int rows = row_count(offsets, total);
  int longest = 0;
  for (int r = 0; r < rows; r++) {
    const int length = offsets.int32s()[r + 1] - offsets.int32s()[r];
    if (length > longest) longest = length;
  }
  require((bool)cos == (bool)sin && (bool)gq == (bool)gk, "cos goes with sin, and gq with gk");
  for (const Tensor* table : {&cos, &sin})
    require(!*table || (table->rank == 2 && table->sizes[0] >= longest && table->sizes[1] == d / 2), "a rotary table is too short or too narrow");
  for (const Tensor* g : {&gq, &gk}) require(!*g || g->is_vector(d), "the norm of a head must be as long as the head");
  const int64_t sizes[2] = {total, a.heads * d};
  const int window = a.window < longest ? (int)a.window : longest;  // a longer one hides nothing either, and could overflow
  return {qkv.floats(), offsets.int32s(), cos.floats(), sin.floats(), gq.floats(), gk.floats(), (float*)call.output(0, sizes, 2),
          rows, longest, (int)a.heads, (int)a.kv_heads, (int)d, a.causal == 1, window, a.epsilon, 1 / __builtin_sqrtf((float)d)};
}

// Long texts: keys of some (row, key head) units packed by all threads, then their queries by all threads.
void attend_long(const Call& call, const AttentionCall& attention) {
  static thread_local Scratch scratch;
  const int64_t units = (int64_t)attention.rows * attention.kv_heads, one = attention.packed_floats();
  const int64_t fitting = kPackedFloats / one < 2 ? 2 : kPackedFloats / one, most = fitting < units ? fitting : units;
  float* packed = scratch.need((size_t)(one * most));
  require_memory(packed != nullptr);
  const int key_blocks = attention.key_blocks(), query_blocks = attention.query_blocks();
  for (int64_t begin = 0; begin < units; begin += most) {
    const int64_t here = units - begin < most ? units - begin : most;
    auto row = [&](int64_t i) { return (int)((begin + i) / attention.kv_heads); };
    auto head = [&](int64_t i) { return (int)((begin + i) % attention.kv_heads); };
    call.parallel(here * key_blocks, [&](size_t i) {
      const int64_t unit = (int64_t)i / key_blocks;
      call.kernels->pack_keys(attention, row(unit), head(unit), (int)(i % key_blocks), packed + one * unit);
    });
    call.parallel(here * query_blocks, [&](size_t i) {  // the last blocks first: they see most
      const int64_t unit = (int64_t)i / query_blocks;
      call.kernels->attend(attention, row(unit), head(unit), query_blocks - 1 - (int)(i % query_blocks), packed + one * unit);
    });
  }
}

void attention(const Call& call) {
  const AttentionCall attention = make_attention(call);
  if (attention.rows == 0) return;
  if (attention.longest > kUnitTokens) return attend_long(call, attention);
  call.parallel_with_memory((int64_t)attention.rows * attention.kv_heads, [&](size_t i) { return attend_unit(*call.kernels, attention, (int64_t)i); });
}

template <Pool KIND>
void pool(const Call& call) {
  const Tensor x = call.input(0), offsets = call.input(1);
  require(x.rank == 2, "x must be [tokens, width]");
  const int rows = row_count(offsets, x.sizes[0]);
  const int64_t n = x.sizes[1], sizes[2] = {rows, n};
  float* y = (float*)call.output(0, sizes, 2);
  call.parallel(rows, [&](size_t r) {
    const int32_t begin = offsets.int32s()[r], end = offsets.int32s()[r + 1];
    pool_row(KIND, x.floats() + begin * n, end - begin, (int)n, y + (int64_t)r * n);
  });
}

constexpr ONNXTensorElementDataType kFloat = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, kInt32 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,
                                    kInt64 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, kBfloat16 = ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16;
enum Reads { kNothing = 0, kColumns = 1, kEpsilon = 2, kHeads = 4 };

struct Operator : OrtCustomOp {
  const char* name;
  void (*run)(const Call&);
  int reads;  // which attributes
  size_t n_inputs, n_required, n_outputs;
  ONNXTensorElementDataType input_types[kMaxInputs], output_type;

  Operator(const char* name, void (*run)(const Call&), int reads, size_t n_required, size_t n_outputs, ONNXTensorElementDataType output_type,
           std::initializer_list<ONNXTensorElementDataType> types);
};

struct Kernel {
  const Operator* op;
  Attributes attributes;
};

const Operator& operator_of(const OrtCustomOp* op) { return *static_cast<const Operator*>(op); }

OrtStatus* status_of(const Operator& op, OrtErrorCode code, const char* words) {
  char text[256];
  snprintf(text, sizeof text, "samevec %s: %s", op.name, words);
  return api->CreateStatus(code, text);
}

// Calls something that may throw, and gives ONNX Runtime the status.
template <typename Action>
OrtStatus* guarded(const Operator& op, const Action& action) {
  try {
    action();
    return nullptr;
  } catch (const Failed& failed) {
    return failed.status;
  } catch (const Refusal& refusal) {
    return status_of(op, refusal.code, refusal.words);
  } catch (const std::bad_alloc&) {
    return status_of(op, ORT_FAIL, "failed to allocate memory");
  }
}

Attributes read_attributes(const Operator& op, const OrtKernelInfo* info) {
  Attributes a;
  if (op.reads & kColumns) check(api->KernelInfoGetAttribute_int64(info, "columns", &a.columns));
  if (op.reads & kEpsilon) check(api->KernelInfoGetAttribute_float(info, "epsilon", &a.epsilon));
  if (op.reads & kHeads) {
    check(api->KernelInfoGetAttribute_int64(info, "heads", &a.heads));
    check(api->KernelInfoGetAttribute_int64(info, "kv_heads", &a.kv_heads));
    check(api->KernelInfoGetAttribute_int64(info, "causal", &a.causal));
    check(api->KernelInfoGetAttribute_int64(info, "window", &a.window));
  }
  return a;
}

Operator::Operator(const char* name, void (*run)(const Call&), int reads, size_t n_required, size_t n_outputs,
                   ONNXTensorElementDataType output_type, std::initializer_list<ONNXTensorElementDataType> types)
    : OrtCustomOp{}, name(name), run(run), reads(reads), n_inputs(types.size()), n_required(n_required), n_outputs(n_outputs), input_types{}, output_type(output_type) {
  size_t i = 0;
  for (ONNXTensorElementDataType type : types) input_types[i++] = type;
  version = kOrtApiVersion;
  GetName = [](const OrtCustomOp* op) { return operator_of(op).name; };
  GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return "CPUExecutionProvider"; };
  GetInputTypeCount = [](const OrtCustomOp* op) { return operator_of(op).n_inputs; };
  GetInputType = [](const OrtCustomOp* op, size_t i) { return operator_of(op).input_types[i]; };
  GetOutputTypeCount = [](const OrtCustomOp* op) { return operator_of(op).n_outputs; };
  GetOutputType = [](const OrtCustomOp* op, size_t) { return operator_of(op).output_type; };
  GetInputCharacteristic = [](const OrtCustomOp* op, size_t i) { return i < operator_of(op).n_required ? INPUT_OUTPUT_REQUIRED : INPUT_OUTPUT_OPTIONAL; };
  GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return INPUT_OUTPUT_REQUIRED; };
  GetInputMemoryType = [](const OrtCustomOp*, size_t) { return OrtMemTypeDefault; };
  GetStartVersion = [](const OrtCustomOp*) { return 1; };
  GetEndVersion = [](const OrtCustomOp*) { return INT32_MAX; };
  KernelDestroy = [](void* kernel) { delete (Kernel*)kernel; };
  CreateKernelV2 = [](const OrtCustomOp* op, const OrtApi*, const OrtKernelInfo* info, void** kernel) {
    return guarded(operator_of(op), [&] { *kernel = new Kernel{&operator_of(op), read_attributes(operator_of(op), info)}; });
  };
  KernelComputeV2 = [](void* kernel, OrtKernelContext* context) {
    const Kernel& k = *(const Kernel*)kernel;
    return guarded(*k.op, [&] { k.op->run(Call(k.attributes, context)); });
  };
}

const Operator kOperators[] = {
    {"Offsets", offsets, kNothing, 1, 1, kInt32, {kInt64}},
    {"Unpad", unpad, kNothing, 2, 1, kInt64, {kInt64, kInt32}},
    {"Positions", positions, kNothing, 1, 1, kInt64, {kInt32}},
    {"MatMulBf16", matmul<16>, kColumns, 2, 1, kFloat, {kFloat, kBfloat16, kFloat}},
    {"MatMulF32", matmul<32>, kColumns, 2, 1, kFloat, {kFloat, kFloat, kFloat}},
    {"RmsNorm", norm<Norm::rms, false>, kEpsilon, 2, 1, kFloat, {kFloat, kFloat}},
    {"AddRmsNorm", norm<Norm::rms, true>, kEpsilon, 3, 2, kFloat, {kFloat, kFloat, kFloat}},
    {"LayerNorm", norm<Norm::layer, false>, kEpsilon, 2, 1, kFloat, {kFloat, kFloat, kFloat}},
    {"AddLayerNorm", norm<Norm::layer, true>, kEpsilon, 3, 2, kFloat, {kFloat, kFloat, kFloat, kFloat}},
    {"SwiGlu", gated<Gate::silu>, kNothing, 1, 1, kFloat, {kFloat}},
    {"GeGlu", gated<Gate::gelu>, kNothing, 1, 1, kFloat, {kFloat}},
    {"Gelu", activation<Gate::gelu>, kNothing, 1, 1, kFloat, {kFloat}},
    {"Tanh", activation<Gate::tanh>, kNothing, 1, 1, kFloat, {kFloat}},
    {"Attention", attention, kHeads | kEpsilon, 2, 1, kFloat, {kFloat, kInt32, kFloat, kFloat, kFloat, kFloat}},
    {"FirstToken", pool<Pool::first>, kNothing, 2, 1, kFloat, {kFloat, kInt32}},
    {"LastToken", pool<Pool::last>, kNothing, 2, 1, kFloat, {kFloat, kInt32}},
    {"MeanPool", pool<Pool::mean>, kNothing, 2, 1, kFloat, {kFloat, kInt32}},
};

OrtStatus* register_all(OrtSessionOptions* options) {
  if (!find_kernels())
    return api->CreateStatus(ORT_FAIL, "samevec: this processor has neither AVX2 with FMA nor NEON, or not what SAMEVEC_INSTRUCTION_SET names; use the profile 'portable'");
  OrtCustomOpDomain* domain = nullptr;
  OrtStatus* status = api->CreateCustomOpDomain("samevec", &domain);
  for (const Operator& op : kOperators)
    if (!status) status = api->CustomOpDomain_Add(domain, &op);
  return status ? status : api->AddCustomOpDomain(options, domain);
}

}  // namespace
}  // namespace samevec

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  samevec::api = base->GetApi(kOrtApiVersion);
  return samevec::api ? samevec::register_all(options) : nullptr;  // without the interface there is no way to say so; the graph's operators will be unknown
}
