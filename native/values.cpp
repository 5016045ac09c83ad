// What needs no instruction set of its own: units of attention, pooling, and the values that leave.
#include <cstring>

#include "kernels.h"

namespace samevec {
namespace {

thread_local Scratch unit_packed;
constexpr int kMeanTokens = 32;    // tokens of one sum
constexpr int kMeanColumns = 128;  // components summed side by side

void mean_columns(const float* x, int length, int n, int columns, float* y) {
  float all[kMeanColumns] = {};
  for (int t0 = 0; t0 < length; t0 += kMeanTokens) {
    float sum[kMeanColumns] = {};
    for (int t = t0; t < length && t < t0 + kMeanTokens; t++)
      for (int j = 0; j < columns; j++) sum[j] += x[(int64_t)t * n + j];
    for (int j = 0; j < columns; j++) all[j] += sum[j];
  }
  for (int j = 0; j < columns; j++) y[j] = all[j] / (float)length;
}

void unit_norm(const float* x, int64_t n, float* y) {
  double s[32] = {};
  for (int64_t i = 0; i < n; i++) s[i % 32] += (double)x[i] * x[i];  // exact products
  for (int half = 16; half; half /= 2)
    for (int j = 0; j < half; j++) s[j] += s[j + half];
  const double norm = __builtin_sqrt(s[0]);
  for (int64_t i = 0; i < n; i++) y[i] = (float)(x[i] / norm);
}

// 2^t for t <= 0: Taylor's series of 2^f up to f^12, |f| <= 1/2, whose rest is below 2e-16.
double exp2_neg(double t) {
  static const double kTerms[] = {0x1.e8cac7351bb25p-32, 0x1.e4cf5158b8ecap-28, 0x1.b5253d395e7c4p-24, 0x1.62c0223a5c824p-20,
                                  0x1.ffcbfc588b0c7p-17, 0x1.430912f86c787p-13, 0x1.5d87fe78a6731p-10, 0x1.3b2ab6fba4e77p-7,
                                  0x1.c6b08d704a0c0p-5,  0x1.ebfbdff82c58fp-3,  0x1.62e42fefa39efp-1,  0x1p0};
  if (t < -1022) return 0;
  const double n = (t + 0x1.8p52) - 0x1.8p52, f = t - n;
  double p = 0x1.c3bd650fc2986p-36;
  for (double term : kTerms) p = p * f + term;
  if (t != t) return t;
  const uint64_t bits = (uint64_t)((int64_t)n + 1023) << 52;
  double scale;
  memcpy(&scale, &bits, sizeof scale);
  return p * scale;
}

double sigmoid(double x) {
  const double e = exp2_neg((x < 0 ? x : -x) * 0x1.71547652b82fep+0);
  return x >= 0 ? 1 / (1 + e) : e / (1 + e);
}

}  // namespace

bool attend_unit(const Kernels& kernels, const AttentionCall& call, int64_t unit) {
  const int row = (int)(unit / call.kv_heads), kv_head = (int)(unit % call.kv_heads);
  float* packed = unit_packed.need((size_t)call.packed_floats());
  if (!packed) return false;
  for (int i = 0; i < call.key_blocks(); i++) kernels.pack_keys(call, row, kv_head, i, packed);
  for (int i = 0; i < call.query_blocks(); i++) kernels.attend(call, row, kv_head, i, packed);
  return true;
}

void pool_row(Pool kind, const float* x, int length, int n, float* y) {
  if (kind != Pool::mean) {
    memcpy(y, kind == Pool::first ? x : x + (int64_t)(length - 1) * n, 4 * (size_t)n);
    return;
  }
  for (int j = 0; j < n; j += kMeanColumns) mean_columns(x + j, length, n, n - j < kMeanColumns ? n - j : kMeanColumns, y + j);
}

}  // namespace samevec

#define EXPORTED extern "C" __attribute__((visibility("default")))
EXPORTED void samevec_unit_norm(const float* x, int64_t n_rows, int64_t n, float* y) {
  for (int64_t r = 0; r < n_rows; r++) samevec::unit_norm(x + r * n, n, y + r * n);
}

EXPORTED void samevec_sigmoid(const float* x, int64_t n, double* y) {
  for (int64_t i = 0; i < n; i++) y[i] = samevec::sigmoid(x[i]);
}
