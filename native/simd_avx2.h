// The words that the kernels are written in, for AVX2 and FMA.
#pragma once
#include <immintrin.h>
#define V 8
#define MAX_ROWS 6
#define TILE_PAIRS(rows) ((rows) <= 2 ? 2 : 1)
typedef __m256 vf;
typedef __m256i vu;
#define ZERO() _mm256_setzero_ps()
#define SPLAT(x) _mm256_set1_ps(x)
#define LOADF(p) _mm256_loadu_ps(p)
#define STOREF(p, x) _mm256_storeu_ps(p, x)
#define LOADU(p) _mm256_loadu_si256((const __m256i*)(p))
#define LOW(w) _mm256_castsi256_ps(_mm256_slli_epi32(w, 16))
#define HIGH(w) _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32((int)0xffff0000)))
#define ADD(a, b) _mm256_add_ps(a, b)
#define SUB(a, b) _mm256_sub_ps(a, b)
#define MUL(a, b) _mm256_mul_ps(a, b)
#define DIV(a, b) _mm256_div_ps(a, b)
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define ABS(a) _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a)
#define IF_GE(x, y, a, b) _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, y, _CMP_GE_OQ))
#define IF_LT(x, y, a, b) _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, y, _CMP_LT_OQ))
#define GREATER(x, top) _mm256_max_ps(x, top)  // the second where either is a NaN
// p * 2^n for n = shifted - 1.5 * 2^23; a NaN stays one.
#define SCALE2(p, n, shifted)                                                                             \
  _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_add_epi32(_mm256_slli_epi32(_mm256_castps_si256(shifted), 23), \
                                                        _mm256_set1_epi32(0x3f800000))))
#ifndef __clang__
// gcc 12 moves the accumulators through the registers and spills. Written out, in order, with the mask in memory, sixteen
// registers are enough.
#define FMA_TO(c, a, b) __asm__ volatile("vfmadd231ps\t%2, %1, %0" : "+x"(c) : "x"(a), "x"(b))
#define SPLAT_TO(x, from) __asm__ volatile("vbroadcastss\t%1, %0" : "=x"(x) : "m"(from))
alignas(32) static const unsigned kHighHalves[8] = {0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000,
                                                    0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000};
#undef HIGH
#define HIGH(w)                                                                                       \
  ({                                                                                                  \
    __m256 high_;                                                                                     \
    __asm__("vandps\t%2, %1, %0" : "=x"(high_) : "x"(w), "m"(*(const __m256*)kHighHalves));           \
    high_;                                                                                            \
  })
#endif
