#include "simd_avx512.h"
// After the words:
#include "kernels.inc"
extern const samevec::Kernels samevec_kernels_avx512 = {"avx512", MAX_ROWS, tile, pack, norm, gate, pack_keys, attend};
