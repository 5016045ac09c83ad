#include "simd_neon.h"
// After the words:
#include "kernels.inc"
extern const samevec::Kernels samevec_kernels_neon = {"neon", MAX_ROWS, tile, pack, norm, gate, pack_keys, attend};
