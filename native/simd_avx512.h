// The words that the kernels are written in, for AVX-512F.
#pragma once
#include <immintrin.h>
#define V 16
#define MAX_ROWS 12
#define TILE_PAIRS(rows) 1
typedef __m512 vf;
typedef __m512i vu;
#define ZERO() _mm512_setzero_ps()
#define SPLAT(x) _mm512_set1_ps(x)
#define LOADF(p) _mm512_loadu_ps(p)
#define STOREF(p, x) _mm512_storeu_ps(p, x)
#define LOADU(p) _mm512_loadu_si512((const void*)(p))
#define LOW(w) _mm512_castsi512_ps(_mm512_slli_epi32(w, 16))
#define HIGH(w) _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32((int)0xffff0000)))
#define ADD(a, b) _mm512_add_ps(a, b)
#define SUB(a, b) _mm512_sub_ps(a, b)
#define MUL(a, b) _mm512_mul_ps(a, b)
#define DIV(a, b) _mm512_div_ps(a, b)
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define ABS(a) _mm512_abs_ps(a)
#define IF_GE(x, y, a, b) _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(x, y, _CMP_GE_OQ), a)
#define IF_LT(x, y, a, b) _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(x, y, _CMP_LT_OQ), a)
#define GREATER(x, top) _mm512_max_ps(x, top)  // the second where either is a NaN
#define SCALE2(p, n, shifted) _mm512_scalef_ps(p, n)  // p * 2^n
