// A hash of each kernel's results on fixed inputs: equal on every processor and with every compiler, and equal to
// hashes.txt. Inputs come from integers, so that nothing else enters.
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "kernels.h"

namespace samevec {
namespace {

typedef std::vector<float> Floats;

class Inputs {  // a linear congruential generator (Numerical Recipes' constants)
 public:
  uint32_t next() { return state_ = state_ * 1664525u + 1013904223u; }
  Floats floats(size_t n, float scale = 1) {  // 24-bit multiples of 2^-23 in [-1, 1)
    Floats values(n);
    for (float& value : values) value = (float)((int32_t)next() >> 8) * 0x1p-23f * scale;
    return values;
  }
  std::vector<uint32_t> bfloat16_pairs(size_t n) {  // magnitudes from 2^-7 to 2^1
    std::vector<uint32_t> words(n);
    for (uint32_t& word : words) word = half() | half() << 16;
    return words;
  }

 private:
  uint32_t half() { return 0x3c00u + (next() >> 16 & 0x83ffu); }
  uint32_t state_ = 1;
};

class Hash {  // FNV-1a over 32-bit words
 public:
  void add(const float* values, size_t n) {
    for (size_t i = 0; i < n; i++) {
      uint32_t bits;
      memcpy(&bits, values + i, 4);
      add(bits);
    }
  }
  void add(const Floats& values) { add(values.data(), values.size()); }
  void add(double value) {
    uint64_t bits;
    memcpy(&bits, &value, 8);
    add((uint32_t)bits);
    add((uint32_t)(bits >> 32));
  }
  uint64_t value() const { return hash_; }

 private:
  void add(uint32_t bits) { hash_ = (hash_ ^ bits) * 1099511628211ull; }
  uint64_t hash_ = 1469598103934665603ull;
};

Hash products(const Kernels& kernels, int words) {
  Inputs inputs;
  Hash hash;
  for (int k : {1, 96, 257, 600})
    for (int n : {1, 32, 100})
      for (int m : {1, 2, 3, 5, 6, 7, 11, 12, 13, 31, 72, 80}) {
        const size_t size = (size_t)(n + 31) / 32 * k * words;
        const Floats x = inputs.floats((size_t)m * k), bias = inputs.floats((size_t)n), weights = inputs.floats(words == 32 ? size : 0);
        const std::vector<uint32_t> pairs = inputs.bfloat16_pairs(words == 16 ? size : 0);
        const uint32_t* panels = words == 16 ? pairs.data() : (const uint32_t*)weights.data();
        Floats y((size_t)m * n);
        const ProductCall call = make_product(&kernels, words, x.data(), panels, n == 100 ? bias.data() : nullptr, y.data(), m, k, n);
        for (int64_t i = 0; i < call.tasks(); i++)
          if (!run_product_task(call, i)) return Hash();
        hash.add(y);
      }
  return hash;
}

Hash norms(const Kernels& kernels) {
  Inputs inputs;
  Hash hash;
  for (int n : {32, 96, 384, 1024})
    for (Norm kind : {Norm::rms, Norm::layer})
      for (bool adds : {false, true}) {
        const Floats x = inputs.floats((size_t)n, 4), residual = inputs.floats((size_t)n), g = inputs.floats((size_t)n), b = inputs.floats((size_t)n);
        Floats y((size_t)n), sum((size_t)n);
        const float* bias = kind == Norm::layer && adds ? b.data() : nullptr;
        kernels.norm({kind, x.data(), adds ? residual.data() : nullptr, g.data(), bias, y.data(), sum.data(), 1, n, 1e-6f}, 0);
        hash.add(y);
        hash.add(sum);
      }
  return hash;
}

Hash gates(const Kernels& kernels, Gate kind) {
  Inputs inputs;
  Hash hash;
  for (float scale : {0x1p-30f, 1.0f, 8.0f, 200.0f}) {
    const Floats x = inputs.floats(1001, scale), factor = inputs.floats(1001);
    Floats y(1001);
    kernels.gate(kind, x.data(), scale == 8 ? factor.data() : nullptr, y.data(), 1001);
    hash.add(y);
  }
  return hash;
}

struct Heads {
  int heads, kv_heads, d;
};

Hash attention(const Kernels& kernels, bool causal, int window) {
  Inputs inputs;
  Hash hash;
  const int32_t offsets[] = {0, 1, 6, 23, 124, 324};
  const int total = 324, longest = 200;
  for (Heads h : {Heads{4, 4, 32}, Heads{6, 2, 64}, Heads{2, 1, 96}, Heads{4, 2, 128}}) {
    const Floats qkv = inputs.floats((size_t)total * (h.heads + 2 * h.kv_heads) * h.d, 2);
    const Floats cos = inputs.floats((size_t)longest * h.d / 2), sin = inputs.floats((size_t)longest * h.d / 2);
    const Floats gq = inputs.floats((size_t)h.d), gk = inputs.floats((size_t)h.d);
    Floats y((size_t)total * h.heads * h.d);
    const bool rotary = h.d != 32, normed = h.d == 128;
    const AttentionCall call{qkv.data(), offsets, rotary ? cos.data() : nullptr, rotary ? sin.data() : nullptr, normed ? gq.data() : nullptr,
                             normed ? gk.data() : nullptr, y.data(), 5, longest, h.heads, h.kv_heads, h.d, causal, window, 1e-6f,
                             1 / __builtin_sqrtf((float)h.d)};
    for (int64_t unit = 0; unit < (int64_t)call.rows * call.kv_heads; unit++)
      if (!attend_unit(kernels, call, unit)) return Hash();
    hash.add(y);
  }
  return hash;
}

Hash pooling() {
  Inputs inputs;
  Hash hash;
  for (int length : {1, 31, 32, 33, 100}) {
    const Floats x = inputs.floats((size_t)length * 160);
    Floats y(160);
    for (Pool kind : {Pool::first, Pool::last, Pool::mean}) {
      pool_row(kind, x.data(), length, 160, y.data());
      hash.add(y);
    }
  }
  return hash;
}

Hash unit_norms() {
  Inputs inputs;
  Hash hash;
  for (int n : {1, 31, 256, 1000}) {
    const Floats x = inputs.floats((size_t)n, 100);
    Floats y((size_t)n);
    samevec_unit_norm(x.data(), 1, n, y.data());
    hash.add(y);
  }
  return hash;
}

Hash sigmoids() {
  Inputs inputs;
  Hash hash;
  for (float scale : {0x1p-20f, 1.0f, 20.0f, 800.0f})
    for (float x : inputs.floats(500, scale)) {
      double y;
      samevec_sigmoid(&x, 1, &y);
      hash.add(y);
    }
  return hash;
}

}  // namespace
}  // namespace samevec

// Writes lines "name hash"; returns their length, or -1 where `size` is too small or the processor cannot run them.
extern "C" __attribute__((visibility("default"))) int64_t samevec_selftest(char* text, int64_t size) {
  using namespace samevec;
  const Kernels* kernels = find_kernels();
  if (!kernels) return -1;
  const struct {
    const char* name;
    Hash hash;
  } results[] = {
      {"product-bfloat16", products(*kernels, 16)},
      {"product-float32", products(*kernels, 32)},
      {"norms", norms(*kernels)},
      {"silu", gates(*kernels, Gate::silu)},
      {"gelu", gates(*kernels, Gate::gelu)},
      {"tanh", gates(*kernels, Gate::tanh)},
      {"attention-causal", attention(*kernels, true, -1)},
      {"attention-both-ways", attention(*kernels, false, -1)},
      {"attention-window", attention(*kernels, false, 20)},
      {"pooling", pooling()},
      {"unit-norm", unit_norms()},
      {"sigmoid", sigmoids()},
  };
  int64_t used = 0;
  for (const auto& result : results) {
    const int64_t n = snprintf(text + used, (size_t)(size - used), "%s %016llx\n", result.name, (unsigned long long)result.hash.value());
    if (n >= size - used) return -1;
    used += n;
  }
  return used;
}
