#include "simd_avx2.h"
// After the words:
#include "kernels.inc"
extern const samevec::Kernels samevec_kernels_avx2 = {"avx2", MAX_ROWS, tile, pack, norm, gate, pack_keys, attend};
