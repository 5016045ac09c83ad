// Drives the native operators through an ONNX Runtime of its own, under AddressSanitizer and UndefinedBehaviorSanitizer:
// fuzzed shapes, buffers of exactly their size, outputs that must be written whole, memory that runs out, and an error from
// each call of the interface in turn. Built by test_sanitizers.py together with native/*.cpp.
//
//   sanitize fuzz SEED CASES     prints what was run
//   sanitize unsupported         expects the library to refuse this processor
#include <atomic>
#include <cfenv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels.h"
#include "onnxruntime_api.h"

extern "C" OrtStatus* RegisterCustomOps(OrtSessionOptions*, const OrtApiBase*);

#define EXPECT(condition, ...)                                     \
  do {                                                             \
    if (!(condition)) {                                            \
      fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
      fprintf(stderr, __VA_ARGS__);                                \
      fputc('\n', stderr);                                         \
      abort();                                                     \
    }                                                              \
  } while (0)

// What fails: the call of the interface, or the allocation, with this number; none where it is below 0.

static std::atomic<int> calls_left{-1}, allocations_left{-1};
static std::atomic<long> live_statuses{0}, live_infos{0};

static bool runs_out(std::atomic<int>& left) { return left >= 0 && left-- == 0; }

extern "C" void* aligned_alloc(size_t alignment, size_t size) noexcept {  // in place of the system's
  if (runs_out(allocations_left)) return nullptr;
  void* at = nullptr;
  return posix_memalign(&at, alignment, size) ? nullptr : at;
}

static thread_local bool new_fails = false;

void* operator new(size_t size) {
  void* at = new_fails ? nullptr : malloc(size ? size : 1);
  if (!at) throw std::bad_alloc();
  return at;
}
void operator delete(void* at) noexcept { free(at); }
void operator delete(void* at, size_t) noexcept { free(at); }

// The interface

struct OrtStatus {
  std::string words;
};
struct OrtTensorTypeAndShapeInfo {
  std::vector<int64_t> sizes;
};
struct OrtCustomOpDomain {
  std::vector<const OrtCustomOp*> operators;
};
struct OrtSessionOptions {
  OrtCustomOpDomain* domain = nullptr;
};
struct OrtKernelInfo {
  std::map<std::string, int64_t> integers;
  std::map<std::string, float> floats;
};

static size_t size_of(ONNXTensorElementDataType type) {
  return type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 ? 8 : type == ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16 ? 2 : 4;
}

constexpr unsigned kUnwritten = 0xffabcdef;  // a NaN that no operator makes

// A tensor that ends where its memory ends; without elements it may have none.
struct OrtValue {
  std::vector<int64_t> sizes;
  size_t n_bytes, offset;
  char* memory = nullptr;

  OrtValue(std::vector<int64_t> sizes, ONNXTensorElementDataType type, size_t offset) : sizes(sizes), offset(offset) {
    n_bytes = size_of(type);
    for (int64_t size : sizes) n_bytes *= (size_t)size;
    if (n_bytes == 0 && offset) return;
    memory = (char*)malloc(offset + n_bytes);
    for (size_t i = 0; i + 4 <= n_bytes; i += 4) memcpy(memory + offset + i, &kUnwritten, 4);
  }
  OrtValue(const OrtValue&) = delete;
  ~OrtValue() { free(memory); }
  void* data() const { return memory ? memory + offset : nullptr; }
};

struct OrtKernelContext {
  std::vector<std::unique_ptr<OrtValue>> inputs, outputs;
  std::vector<ONNXTensorElementDataType> output_types;
  int threads = 1;
  bool backwards = false;
};

static OrtStatus* make_status(const char* words) {
  new_fails = false;  // this memory is the interface's
  live_statuses++;
  return new OrtStatus{words};
}
static void release(OrtStatus* status) {
  if (status) live_statuses--;
  delete status;
}

#define MAY_FAIL() \
  if (runs_out(calls_left)) return make_status("this call fails")

static void run_parallel(const OrtKernelContext* context, void (*task)(void*, size_t), size_t n, void* data) {
  std::atomic<size_t> next{0};
  auto work = [&] {
    for (size_t i; (i = next++) < n;) task(data, context->backwards ? n - 1 - i : i);
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < context->threads; i++) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
}

static std::vector<std::unique_ptr<OrtCustomOpDomain>> domains;

template <typename T>
static OrtStatus* attribute(const std::map<std::string, T>& values, const char* name, T* to) {
  MAY_FAIL();
  const auto found = values.find(name);
  if (found == values.end()) return make_status(name);
  *to = found->second;
  return nullptr;
}

static OrtApi make_api() {
  OrtApi api = {};
  api.CreateStatus = [](OrtErrorCode, const char* words) { return make_status(words); };
  api.CreateCustomOpDomain = [](const char* name, OrtCustomOpDomain** domain) -> OrtStatus* {
    MAY_FAIL();
    EXPECT(!strcmp(name, "samevec"), "%s", name);
    domains.push_back(std::make_unique<OrtCustomOpDomain>());
    *domain = domains.back().get();
    return nullptr;
  };
  api.CustomOpDomain_Add = [](OrtCustomOpDomain* domain, const OrtCustomOp* op) -> OrtStatus* {
    MAY_FAIL();
    domain->operators.push_back(op);
    return nullptr;
  };
  api.AddCustomOpDomain = [](OrtSessionOptions* options, OrtCustomOpDomain* domain) -> OrtStatus* {
    MAY_FAIL();
    options->domain = domain;
    return nullptr;
  };
  api.GetTensorMutableData = [](OrtValue* value, void** data) -> OrtStatus* {
    MAY_FAIL();
    *data = value->data();
    return nullptr;
  };
  api.GetDimensionsCount = [](const OrtTensorTypeAndShapeInfo* info, size_t* n) -> OrtStatus* {
    MAY_FAIL();
    *n = info->sizes.size();
    return nullptr;
  };
  api.GetDimensions = [](const OrtTensorTypeAndShapeInfo* info, int64_t* sizes, size_t n) -> OrtStatus* {
    MAY_FAIL();
    EXPECT(n == info->sizes.size(), "%zu", n);
    for (size_t i = 0; i < n; i++) sizes[i] = info->sizes[i];
    return nullptr;
  };
  api.GetTensorTypeAndShape = [](const OrtValue* value, OrtTensorTypeAndShapeInfo** info) -> OrtStatus* {
    MAY_FAIL();
    live_infos++;
    *info = new OrtTensorTypeAndShapeInfo{value->sizes};
    return nullptr;
  };
  api.ReleaseTensorTypeAndShapeInfo = [](OrtTensorTypeAndShapeInfo* info) {
    if (info) live_infos--;
    delete info;
  };
  api.KernelInfoGetAttribute_float = [](const OrtKernelInfo* info, const char* name, float* value) {
    return attribute(info->floats, name, value);
  };
  api.KernelInfoGetAttribute_int64 = [](const OrtKernelInfo* info, const char* name, int64_t* value) {
    return attribute(info->integers, name, value);
  };
  api.KernelContext_GetInputCount = [](const OrtKernelContext* context, size_t* n) -> OrtStatus* {
    MAY_FAIL();
    *n = context->inputs.size();
    return nullptr;
  };
  api.KernelContext_GetInput = [](const OrtKernelContext* context, size_t i, const OrtValue** value) -> OrtStatus* {
    MAY_FAIL();
    EXPECT(i < context->inputs.size(), "%zu", i);
    *value = context->inputs[i].get();
    return nullptr;
  };
  api.KernelContext_GetOutput = [](OrtKernelContext* context, size_t i, const int64_t* sizes, size_t rank, OrtValue** value) -> OrtStatus* {
    MAY_FAIL();
    double size = 1;
    for (size_t j = 0; j < rank; j++) {
      EXPECT(sizes[j] >= 0, "an output of a negative size");
      size *= (double)sizes[j];
    }
    if (size > 1 << 24) return make_status("failed to allocate the output");
    EXPECT(i < context->output_types.size(), "output %zu", i);
    context->outputs[i] = std::make_unique<OrtValue>(std::vector<int64_t>(sizes, sizes + rank), context->output_types[i], 0);
    *value = context->outputs[i].get();
    return nullptr;
  };
  api.KernelContext_ParallelFor = [](const OrtKernelContext* context, void (*task)(void*, size_t), size_t n, size_t, void* data) -> OrtStatus* {
    MAY_FAIL();
    EXPECT(n > 0 && n < 1u << 28, "%zu tasks", n);
    run_parallel(context, task, n, data);
    return nullptr;
  };
  return api;
}

static const OrtApi api = make_api();
static const OrtApiBase base = {[](uint32_t version) { return version == kOrtApiVersion ? &api : nullptr; }, nullptr};
static const OrtApiBase base_without = {[](uint32_t) -> const OrtApi* { return nullptr; }, nullptr};

// Cases

struct Tensor {
  std::vector<int64_t> sizes;
  ONNXTensorElementDataType type;
  std::vector<int64_t> integers;  // its values, where they are integers
  bool absent = false;
};

struct Case {
  std::string op;
  std::vector<Tensor> inputs;
  OrtKernelInfo info;
};

constexpr ONNXTensorElementDataType kFloat = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, kInt32 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,
                                    kInt64 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, kBfloat16 = ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16;

class Fuzzer {
 public:
  explicit Fuzzer(unsigned seed) : random_(seed) {}

  int64_t from(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
  bool one_in(int64_t n) { return from(1, n) == 1; }
  template <typename T>
  T any(std::initializer_list<T> choices) {
    return choices.begin()[from(0, (int64_t)choices.size() - 1)];
  }

  Case make(const std::string& op, bool may_be_wrong) {
    wrong_ = may_be_wrong;
    Case c{op, {}, {}};
    if (op == "Offsets") c.inputs = {mask()};
    else if (op == "Unpad") c.inputs = unpad();
    else if (op == "Positions") c.inputs = {offsets(lengths(80))};
    else if (op == "MatMulBf16" || op == "MatMulF32") product(c, op == "MatMulBf16" ? kBfloat16 : kFloat);
    else if (op.find("Norm") != std::string::npos) norm(c, op.compare(0, 3, "Add") == 0, op.find("Layer") != std::string::npos);
    else if (op == "SwiGlu" || op == "GeGlu") c.inputs = {floats(rows_of(2 * from(1, 130)))};
    else if (op == "Gelu" || op == "Tanh") c.inputs = {floats(rows_of(from(1, 260)))};
    else if (op == "Attention") attention(c);
    else pool(c);
    if (wrong_ && one_in(5)) spoil(c);
    return c;
  }

  void fill(OrtValue& value, const Tensor& tensor) {
    if (tensor.type == kInt32 || tensor.type == kInt64) {
      for (size_t i = 0; i < tensor.integers.size(); i++) {
        const int32_t narrow = (int32_t)tensor.integers[i];
        if (tensor.type == kInt32) memcpy((char*)value.data() + 4 * i, &narrow, 4);
        else memcpy((char*)value.data() + 8 * i, &tensor.integers[i], 8);
      }
      return;
    }
    const bool hostile = one_in(4);
    const size_t size = size_of(tensor.type);
    for (size_t at = 0; at < value.n_bytes; at += size) {
      float x = (float)from(-1000, 1000) * 0.01f;
      if (hostile && one_in(30)) x = any({0.0f, -0.0f, 1e-45f, 3e38f, -3e38f, __builtin_inff(), -__builtin_inff(), __builtin_nanf("")});
      memcpy((char*)value.data() + at, (const char*)&x + 4 - size, size);
    }
  }

 private:
  std::vector<int64_t> lengths(int64_t most) {
    std::vector<int64_t> all;
    for (int64_t i = 0, n = from(1, 6); i < n; i++) all.push_back(one_in(3) ? from(1, most) : from(1, 12));
    return all;
  }
  static int64_t sum(const std::vector<int64_t>& all) {
    int64_t total = 0;
    for (int64_t length : all) total += length;
    return total;
  }
  Tensor offsets(const std::vector<int64_t>& all) {
    Tensor tensor{{(int64_t)all.size() + 1}, kInt32, {0}};
    for (int64_t length : all) tensor.integers.push_back(tensor.integers.back() + length);
    if (wrong_ && one_in(10)) tensor.integers[(size_t)from(0, (int64_t)all.size())] += any<int64_t>({-200, -1, 1, 200, INT32_MAX});
    if (wrong_ && one_in(20)) tensor.integers.resize(tensor.sizes[0] = 1);
    if (wrong_ && one_in(20)) tensor.integers.resize(tensor.sizes[0] = 0);
    return tensor;
  }
  Tensor floats(std::vector<int64_t> sizes) { return {sizes, kFloat, {}}; }
  std::vector<int64_t> rows_of(int64_t n) {
    switch (from(0, 5)) {
      case 0: return {n};
      case 1: return {from(0, 3), from(1, 5), n};
      case 2: return {one_in(3) ? from(1, 400) : 1, n};
      default: return {from(1, 40), n};
    }
  }

  Tensor mask() {
    const int64_t rows = from(wrong_ ? 0 : 1, 6), tokens = from(wrong_ ? 0 : 1, 40);
    Tensor tensor{{rows, tokens}, kInt64, {}};
    for (int64_t r = 0; r < rows; r++)
      for (int64_t i = 0, length = from(wrong_ ? 0 : 1, tokens); i < tokens; i++) tensor.integers.push_back(i < length);
    if (wrong_ && one_in(3) && !tensor.integers.empty()) tensor.integers[(size_t)from(0, rows * tokens - 1)] = any<int64_t>({0, 1, 2, -1, INT64_MIN});
    return tensor;
  }
  std::vector<Tensor> unpad() {
    const std::vector<int64_t> all = lengths(30);
    int64_t tokens = from(0, 2);
    for (int64_t length : all) tokens = length > tokens ? length : tokens;
    Tensor ids{{(int64_t)all.size(), tokens}, kInt64, std::vector<int64_t>(all.size() * (size_t)tokens, 7)};
    return {ids, offsets(all)};
  }
  void product(Case& c, ONNXTensorElementDataType type) {
    const int64_t k = any<int64_t>({1, 3, 32, 255, 256, 257, from(1, 600)}), n = any<int64_t>({1, 16, 17, 32, 33, from(1, 130)});
    c.inputs = {floats(rows_of(k)), {{(n + 31) / 32, k, 32}, type, {}}};
    if (one_in(2)) c.inputs.push_back(floats({n}));
    c.info.integers["columns"] = n;
    if (wrong_ && one_in(10)) c.info.integers["columns"] = any<int64_t>({0, -1, n + 1, n + 32, INT32_MAX, INT64_MAX, INT64_MIN});
  }
  void norm(Case& c, bool adds, bool layer) {
    const int64_t n = 32 * from(1, 8);
    const std::vector<int64_t> sizes = rows_of(n);
    c.inputs = {floats(sizes)};
    if (adds) c.inputs.push_back(floats(sizes));
    c.inputs.push_back(floats({n}));
    if (layer && one_in(2)) c.inputs.push_back(floats({n}));
    c.info.floats["epsilon"] = any({0.0f, 1e-5f});
  }
  void pool(Case& c) {
    const std::vector<int64_t> all = lengths(100);
    c.inputs = {floats({sum(all), from(1, 300)}), offsets(all)};
  }
  void attention(Case& c) {
    const int64_t kv = from(1, 3), group = any<int64_t>({1, 1, 2, 3, 5, 7, 16, 17, 31, 32}), d = 32 * from(1, 4);
    const std::vector<int64_t> all = one_in(12) ? many() : lengths(group > 5 ? 20 : one_in(6) ? 300 : 110);
    int64_t longest = 1;
    for (int64_t length : all) longest = length > longest ? length : longest;
    c.inputs = {floats({sum(all), (group + 2) * kv * d}), offsets(all)};
    const int64_t tables = from(0, 3), positions = longest + (wrong_ && one_in(20) ? -1 : from(0, 2));
    for (int i = 0; i < 2; i++) c.inputs.push_back({{positions, d / 2}, kFloat, {}, !(tables & 1)});
    for (int i = 0; i < 2; i++) c.inputs.push_back({{d}, kFloat, {}, !(tables & 2)});
    while (c.inputs.back().absent && one_in(2)) c.inputs.pop_back();
    const int64_t window = any<int64_t>({-1, 0, 1, from(0, 50), 96, longest, INT32_MAX - longest, INT32_MAX - 1, INT32_MAX});
    c.info.integers = {{"heads", group * kv}, {"kv_heads", kv}, {"causal", from(0, 1)}, {"window", window}};
    c.info.floats["epsilon"] = 1e-6f;
    if (wrong_ && one_in(8))
      c.info.integers[any<const char*>({"heads", "kv_heads", "causal", "window"})] =
          any<int64_t>({-2, -1, 0, 1, 2, 33, INT32_MAX, INT64_C(1) << 32, INT64_MAX, INT64_MIN});
  }
  // More (row, key head) pairs than are packed at a time, because one row is long.
  std::vector<int64_t> many() {
    std::vector<int64_t> all(90, 1);
    all[(size_t)from(0, 89)] = 200;
    return all;
  }

  // Makes one input something else.
  void spoil(Case& c) {
    Tensor& tensor = c.inputs[(size_t)from(0, (int64_t)c.inputs.size() - 1)];
    std::vector<int64_t>& sizes = tensor.sizes;
    const size_t axis = (size_t)from(0, (int64_t)sizes.size() - 1);
    switch (from(0, 7)) {
      case 0: sizes[axis] += 1; break;
      case 1: sizes[axis] -= sizes[axis] > 0; break;
      case 2: sizes[axis] = 0; break;
      case 3: sizes.insert(sizes.begin() + (long)axis, 1); break;
      case 4: sizes.erase(sizes.begin() + (long)axis); break;
      case 5: sizes = std::vector<int64_t>((size_t)from(7, 12), 1); break;
      case 6: sizes = {any<int64_t>({INT32_MAX, INT64_C(1) << 31, INT64_C(1) << 62}), INT32_MAX, 0}; break;
      default: sizes = {0, any<int64_t>({INT32_MAX, INT64_MAX})}; break;
    }
    size_t n = 1;
    for (int64_t size : sizes) n *= (size_t)size;
    if (tensor.type == kInt32 || tensor.type == kInt64) tensor.integers.resize(n, 0);
  }

  std::mt19937 random_;
  bool wrong_ = false;
};

// Runs

struct Outcome {
  std::string words;  // of the refusal, empty where there is none
  std::vector<std::vector<char>> outputs;
};

static bool any_left(const std::vector<char>& bytes) {
  for (size_t i = 0; i + 4 <= bytes.size(); i += 4)
    if (!memcmp(bytes.data() + i, &kUnwritten, 4)) return true;
  return false;
}

struct Library {
  std::map<std::string, const OrtCustomOp*> operators;

  Library() {
    OrtSessionOptions options;
    EXPECT(!RegisterCustomOps(&options, &base), "refused");
    for (const OrtCustomOp* op : options.domain->operators) operators[op->GetName(op)] = op;
  }

  Outcome run(const Case& c, unsigned seed, int threads) const {
    const OrtCustomOp* op = operators.at(c.op);
    void* kernel = nullptr;
    if (OrtStatus* status = op->CreateKernelV2(op, &api, &c.info, &kernel)) return refused(status);
    Fuzzer fuzzer(seed);
    OrtKernelContext context;
    context.threads = threads;
    context.backwards = threads == 2;
    for (const Tensor& tensor : c.inputs) {
      context.inputs.push_back(tensor.absent ? nullptr : std::make_unique<OrtValue>(tensor.sizes, tensor.type, size_of(tensor.type) * (size_t)fuzzer.from(0, 3)));
      if (!tensor.absent) fuzzer.fill(*context.inputs.back(), tensor);
    }
    for (size_t i = 0; i < op->GetOutputTypeCount(op); i++) context.output_types.push_back(op->GetOutputType(op, i));
    context.outputs.resize(context.output_types.size());
    OrtStatus* status = op->KernelComputeV2(kernel, &context);
    op->KernelDestroy(kernel);
    if (status) return refused(status);
    Outcome outcome;
    for (const auto& output : context.outputs) {
      EXPECT(output, "%s left an output out", c.op.c_str());
      const char* data = (const char*)output->data();
      outcome.outputs.emplace_back(data, data + output->n_bytes);
      EXPECT(!any_left(outcome.outputs.back()), "%s left a part of an output unwritten", c.op.c_str());
    }
    return outcome;
  }

  static Outcome refused(OrtStatus* status) {
    Outcome outcome{status->words, {}};
    EXPECT(!status->words.empty(), "a refusal without words");
    release(status);
    return outcome;
  }
};

static void expect_nothing_left(const Case& c) {
  EXPECT(live_statuses == 0 && live_infos == 0, "%s left %ld statuses and %ld shapes", c.op.c_str(), live_statuses.load(), live_infos.load());
}

// In a thread of its own, which has no work memory yet.
static Outcome run_afresh(const Library& library, const Case& c, unsigned seed, int threads) {
  Outcome outcome;
  std::thread([&] { outcome = library.run(c, seed, threads); }).join();
  return outcome;
}

// Everything that can fail in one run fails in turn. Returns how many runs that took.
static int fail_each(const Library& library, const Case& c, unsigned seed, int threads, std::atomic<int>& left) {
  for (int i = 0;; i++) {
    EXPECT(i < 500, "%s never ends", c.op.c_str());
    left = i;
    const Outcome outcome = run_afresh(library, c, seed, threads);
    const bool failed = left < 0;
    left = -1;
    expect_nothing_left(c);
    if (!failed) {
      EXPECT(outcome.words.empty(), "%s: %s", c.op.c_str(), outcome.words.c_str());
      return i;
    }
    if (&left == &calls_left) {
      EXPECT(outcome.words == "this call fails", "%s: %s", c.op.c_str(), outcome.words.c_str());
    } else {
      EXPECT(outcome.words == "samevec " + c.op + ": failed to allocate work memory", "%s", outcome.words.c_str());
    }
  }
}

static void fail_registration() {
  for (int i = 0;; i++) {
    OrtSessionOptions options;
    calls_left = i;
    OrtStatus* status = RegisterCustomOps(&options, &base);
    const bool failed = calls_left < 0;
    calls_left = -1;
    EXPECT(failed == (status != nullptr), "call %d", i);
    release(status);
    EXPECT(live_statuses == 0, "call %d", i);
    if (!failed) break;
  }
  OrtSessionOptions options;
  EXPECT(!RegisterCustomOps(&options, &base_without) && !options.domain, "registered without an interface");
  EXPECT(!RegisterCustomOps(&options, &base), "refused");
}

static void fail_new(const Library& library, const Case& c) {
  const OrtCustomOp* op = library.operators.at(c.op);
  void* kernel = nullptr;
  new_fails = true;
  OrtStatus* status = op->CreateKernelV2(op, &api, &c.info, &kernel);
  new_fails = false;
  EXPECT(status && !kernel, "%s was made without memory", c.op.c_str());
  release(status);
}

static void round_otherwise(const Library& library, const Case& c) {
  for (int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    fesetround(mode);
    const Outcome outcome = library.run(c, 0, 1);
    fesetround(FE_TONEAREST);
    EXPECT(outcome.words == "samevec Offsets: this thread does not round to nearest", "%d: %s", mode, outcome.words.c_str());
  }
}

static void call_functions(Fuzzer& fuzzer) {
  for (int64_t n : {1, 31, 32, 33, 100, 385}) {
    const int64_t rows = fuzzer.from(0, 3);
    OrtValue x({rows, n}, kFloat, 4), y({rows, n}, kFloat, 4), wide({2 * rows, n}, kFloat, 8);
    fuzzer.fill(x, {{rows, n}, kFloat, {}});
    samevec_unit_norm((const float*)x.data(), rows, n, (float*)y.data());
    samevec_sigmoid((const float*)x.data(), rows * n, (double*)wide.data());
  }
  for (int64_t size : {0, 1, 10, 100, 1 << 16}) {
    std::unique_ptr<char, void (*)(void*)> text((char*)malloc((size_t)size), free);
    samevec_selftest(text.get(), size);
  }
}

static int fuzz(unsigned seed, int cases) {
  fail_registration();
  const Library library;
  Fuzzer fuzzer(seed);
  call_functions(fuzzer);
  round_otherwise(library, fuzzer.make("Offsets", false));
  std::map<std::string, int> given, refused;
  int failures = 0;
  for (const auto& named : library.operators)
    for (int i = 0; i < 6; i++) {
      const Case c = fuzzer.make(named.first, false);
      failures += fail_each(library, c, seed + (unsigned)i, i % 2 ? 3 : 1, calls_left);
      failures += fail_each(library, c, seed + (unsigned)i, i % 2 ? 3 : 1, allocations_left);
      fail_new(library, c);
    }
  for (int i = 0; i < cases; i++)
    for (const auto& named : library.operators) {
      const Case c = fuzzer.make(named.first, i % 2 == 0);
      const Outcome one = library.run(c, (unsigned)i, 1), more = library.run(c, (unsigned)i, i % 3 ? 2 : 3);
      expect_nothing_left(c);
      EXPECT(one.words == more.words && one.outputs == more.outputs, "%s differs between threads", c.op.c_str());
      EXPECT(i % 2 == 0 || one.words.empty(), "%s: %s", c.op.c_str(), one.words.c_str());
      EXPECT(one.words.empty() || one.words.find(c.op) != std::string::npos || one.words == "failed to allocate the output", "%s: %s", c.op.c_str(), one.words.c_str());
      (one.words.empty() ? given : refused)[c.op]++;
    }
  printf("%s, %d failures\n", samevec_instruction_set(), failures);
  for (const auto& named : library.operators) printf("%s: %d computed, %d refused\n", named.first.c_str(), given[named.first], refused[named.first]);
  return 0;
}

static int unsupported() {
  OrtSessionOptions options;
  OrtStatus* status = RegisterCustomOps(&options, &base);
  EXPECT(status && !options.domain, "registered");
  printf("%s\n", status->words.c_str());
  release(status);
  return 0;
}

int main(int n, char** arguments) {
  if (n == 2 && !strcmp(arguments[1], "unsupported")) return unsupported();
  if (n == 4 && !strcmp(arguments[1], "fuzz")) return fuzz((unsigned)atoi(arguments[2]), atoi(arguments[3]));
  fprintf(stderr, "usage: sanitize fuzz SEED CASES | unsupported\n");
  return 2;
}
