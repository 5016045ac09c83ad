// Products: rows cut into blocks that a second-level cache holds, columns into panels. A task is one panel of one block. A
// thread gets neighbouring tasks and packs a block for itself when it meets it first: no shared copy, no waiting.
#include <atomic>
#include <cstring>

#include "kernels.h"

namespace samevec {
namespace {

thread_local Scratch packed_rows;

inline int64_t part(int64_t n, int64_t parts, int64_t i) { return n * i / parts; }
inline int least(int a, int b) { return a < b ? a : b; }

struct Block {
  const ProductCall& call;
  int64_t m0;
  int rows, groups;  // rows are cut into equal groups: 16 rows by 6 at most are 6, 5, 5

  Block(const ProductCall& call, int64_t number)
      : call(call),
        m0(part(call.m, call.blocks, number)),
        rows((int)(part(call.m, call.blocks, number + 1) - m0)),
        groups((rows + call.kernels->max_rows - 1) / call.kernels->max_rows) {}
  int group_begin(int g) const { return (int)part(rows, groups, g); }
};

// Packed: [chain of k][group][k][rows of the group]
void pack_block(const Block& block, float* packed) {
  const ProductCall& call = block.call;
  for (int g = 0; g < block.groups; g++) {
    const int r0 = block.group_begin(g), rows = block.group_begin(g + 1) - r0;
    for (int k0 = 0; k0 < call.k; k0 += kChain) {
      const int k = least(kChain, call.k - k0);
      call.kernels->pack(rows, call.x + (block.m0 + r0) * call.k + k0, call.k, k,
                         packed + (int64_t)block.rows * k0 + (int64_t)r0 * k);
    }
  }
}

const float* packed_block(const Block& block, int64_t number) {
  float* packed = packed_rows.need((size_t)block.rows * block.call.k);
  const uint64_t id = block.call.id + (uint64_t)number;
  if (packed && packed_rows.content != id) {
    pack_block(block, packed);
    packed_rows.content = id;
  }
  return packed;
}

// The rows of the next block, fetched while the last quarter of the panels is multiplied, when both blocks fit the cache.
struct NextRows {
  const char* at = nullptr;
  int64_t lines = 0;  // of each tile

  NextRows(const Block& block, int panel) {
    const ProductCall& call = block.call;
    const int panels = call.panel_count(), late = panels - (panels + 3) / 4;
    const int64_t size = (int64_t)block.rows * call.k * 4;
    if (panel < late || block.m0 + block.rows >= call.m || size > 320 << 10) return;
    const int64_t tiles = (int64_t)block.groups * ((call.k + kChain - 1) / kChain), all = tiles * (panels - late);
    lines = (size / 64 + all - 1) / all;
    at = (const char*)(call.x + (block.m0 + block.rows) * call.k) + lines * 64 * tiles * (panel - late);
  }
  void fetch() {
    for (int64_t i = 0; i < lines; i++, at += 64) __builtin_prefetch(at, 0, 2);
  }
};

void multiply(const Block& block, const float* packed, int panel, float* y, int64_t ldy) {
  const ProductCall& call = block.call;
  NextRows next(block, panel);
  // With rows enough to hide it the next weights are fetched into the first-level cache. With few, reading is the limit,
  // and that cache has too few miss buffers.
  const bool near = call.words == 16 ? block.rows > 10 : block.groups > 2;
  for (int k0 = 0; k0 < call.k; k0 += kChain) {
    const int k = least(kChain, call.k - k0);
    const uint32_t* weights = call.panels + ((int64_t)panel * call.k + k0) * call.words;
    for (int g = 0; g < block.groups; g++) {
      const int r0 = block.group_begin(g), rows = block.group_begin(g + 1) - r0;
      const char* ahead = (const char*)(weights + (int64_t)k * call.words) + (int64_t)4 * call.words * k * g / block.groups;
      next.fetch();
      call.kernels->tile(call.words, rows, packed + (int64_t)block.rows * k0 + (int64_t)r0 * k, weights, k, y + r0 * ldy, ldy,
                         k0 == 0, ahead, block.groups, near);
    }
  }
}

void add_bias(float* y, int64_t ldy, int rows, const float* bias, int columns) {
  for (int r = 0; r < rows; r++)
    for (int j = 0; j < columns; j++) y[r * ldy + j] += bias[j];
}

}  // namespace

ProductCall make_product(const Kernels* kernels, int words, const float* x, const uint32_t* panels, const float* bias, float* y,
                         int64_t m, int k, int n) {
  static std::atomic<uint64_t> calls{1};
  const int64_t blocks = (m + kBlockRows - 1) / kBlockRows;
  return {kernels, words, x, panels, bias, y, m, k, n, calls.fetch_add((uint64_t)blocks), blocks};
}

bool run_product_task(const ProductCall& call, int64_t task) {
  const int panel = (int)(task % call.panel_count()), column = panel * kPanelColumns;
  const int64_t number = task / call.panel_count();
  const Block block(call, number);
  const float* packed = packed_block(block, number);
  if (!packed) return false;
  const int columns = least(kPanelColumns, call.n - column);
  float* y = call.y + block.m0 * call.n + column;
  if (columns == kPanelColumns) {
    multiply(block, packed, panel, y, call.n);
  } else {  // the last columns: a whole panel beside, then what of it there is
    float whole[kBlockRows * kPanelColumns];
    multiply(block, packed, panel, whole, kPanelColumns);
    for (int r = 0; r < block.rows; r++) memcpy(y + (int64_t)r * call.n, whole + r * kPanelColumns, 4 * (size_t)columns);
  }
  if (call.bias) add_bias(y, call.n, block.rows, call.bias + column, columns);
  return true;
}

}  // namespace samevec
