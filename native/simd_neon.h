// The words that the kernels are written in, for NEON on 64-bit ARM.
#pragma once
#include <arm_neon.h>
#define V 4
#define MAX_ROWS 6
#define TILE_PAIRS(rows) 2
typedef float32x4_t vf;
typedef uint32x4_t vu;
#define ZERO() vdupq_n_f32(0)
#define SPLAT(x) vdupq_n_f32(x)
#define LOADF(p) vld1q_f32(p)
#define STOREF(p, x) vst1q_f32(p, x)
#define LOADU(p) vld1q_u32(p)
#define LOW(w) vreinterpretq_f32_u32(vshlq_n_u32(w, 16))
#define HIGH(w) vreinterpretq_f32_u32(vandq_u32(w, vdupq_n_u32(0xffff0000u)))
#define ADD(a, b) vaddq_f32(a, b)
#define SUB(a, b) vsubq_f32(a, b)
#define MUL(a, b) vmulq_f32(a, b)
#define DIV(a, b) vdivq_f32(a, b)
#define FMA(a, b, c) vfmaq_f32(c, a, b)
#define ABS(a) vabsq_f32(a)
#define IF_GE(x, y, a, b) vbslq_f32(vcgeq_f32(x, y), a, b)
#define IF_LT(x, y, a, b) vbslq_f32(vcltq_f32(x, y), a, b)
#define GREATER(x, top) vbslq_f32(vcgtq_f32(x, top), x, top)
// p * 2^n for n = shifted - 1.5 * 2^23; a NaN stays one.
#define SCALE2(p, n, shifted)                                                                                       \
  vmulq_f32(p, vreinterpretq_f32_u32(vaddq_u32(vshlq_n_u32(vreinterpretq_u32_f32(shifted), 23), vdupq_n_u32(0x3f800000u))))
