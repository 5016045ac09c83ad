// Which kernels this processor runs, and the library's facts about itself.
#include <cstdlib>
#include <cstring>

#include "kernels.h"

#ifdef __aarch64__
extern const samevec::Kernels samevec_kernels_neon;
#else
#include <cpuid.h>
extern const samevec::Kernels samevec_kernels_avx2, samevec_kernels_avx512;
#endif

namespace samevec {
namespace {

#ifdef __aarch64__
const Kernels* const kAll[] = {&samevec_kernels_neon};
bool runs(const Kernels*) { return true; }  // part of every 64-bit ARM
#else
const Kernels* const kAll[] = {&samevec_kernels_avx512, &samevec_kernels_avx2};

// Asked of the processor itself: __builtin_cpu_supports answers no to everything in a library linked by zig.
// Bits as in Intel's manual, volume 2A, CPUID; XCR0 as in volume 1, chapter 13.
bool runs(const Kernels* kernels) {
  unsigned a, b, c, d, saved, high;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return false;
  const unsigned fma = 1u << 12, os_saves = 1u << 27, avx = 1u << 28;
  if ((c & (fma | os_saves | avx)) != (fma | os_saves | avx)) return false;
  __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  const bool avx2 = (saved & 0x6) == 0x6 && (b >> 5 & 1);
  const bool avx512 = avx2 && (saved & 0xe6) == 0xe6 && (b >> 16 & 1);
  return kernels == &samevec_kernels_avx512 ? avx512 : avx2;
}
#endif

const Kernels* choose() {
  const char* wanted = getenv("SAMEVEC_INSTRUCTION_SET");
  for (const Kernels* kernels : kAll)
    if (runs(kernels) && (!wanted || !*wanted || !strcmp(wanted, kernels->name))) return kernels;
  return nullptr;
}

}  // namespace

const char* float_environment_problem() {
  volatile float smallest = 0x1p-126f, half = 0.5f, denormal = 0x1p-140f, scale = 0x1p+30f;  // volatile: computed here and now
  volatile float one = 1, above = 0x1p-24f, below = 0x1p-26f;
  if (!(smallest * half * scale > 0) || !(denormal * scale > 0)) return "this thread flushes denormals to zero";
  if (one + above != one || one - below != one) return "this thread does not round to nearest";
  return nullptr;
}

const Kernels* find_kernels() {
  static const Kernels* const found = choose();
  return found;
}

Scratch::~Scratch() { free(data_); }

float* Scratch::need(size_t n_floats) {
  if (n_floats <= n_floats_) return data_;
  free(data_);
  n_floats_ = content = 0;
  const size_t page = 4096;
  data_ = n_floats > SIZE_MAX / 8 ? nullptr : (float*)aligned_alloc(64, (n_floats * sizeof(float) + page - 1) / page * page);
  if (data_) n_floats_ = n_floats;
  return data_;
}

}  // namespace samevec

#define EXPORTED extern "C" __attribute__((visibility("default")))
EXPORTED int samevec_arithmetic() { return samevec::kArithmetic; }

EXPORTED const char* samevec_instruction_set() {
  const samevec::Kernels* kernels = samevec::find_kernels();
  return kernels ? kernels->name : "";
}

EXPORTED const char* samevec_float_environment() {
  const char* problem = samevec::float_environment_problem();
  return problem ? problem : "";
}
