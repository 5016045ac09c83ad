// What the operators call: one table of kernels for each instruction set, all compiled from the same source.
// DEFINITION.md says what each of them computes, to the last bit.
#pragma once
#include <cstddef>
#include <cstdint>

namespace samevec {

constexpr int kArithmetic = 1;
constexpr int kPanelColumns = 32;
constexpr int kChain = 256;       // products of one chain
constexpr int kBlockRows = 72;    // rows of x packed together: a second-level cache holds them
constexpr int kLanes = 32;        // (query, head) pairs that attention computes side by side
constexpr int kKeyBlock = 96;     // keys between two looks at the maximum
constexpr int kMaxHeadSize = 128;

enum class Norm { rms, layer };
enum class Gate { silu, gelu, tanh };

struct NormCall {
  Norm kind;
  const float *x, *residual, *g, *b;  // residual and b may be null
  float *y, *sum;                     // sum: only with a residual
  int64_t rows;
  int n;  // a multiple of 32
  float epsilon;
};

struct AttentionCall {
  const float* qkv;        // [total, (heads + 2 kv_heads) * d]
  const int32_t* offsets;  // [rows + 1]
  const float *cos, *sin;  // [positions, d / 2], or null
  const float *gq, *gk;    // [d], or null
  float* y;                // [total, heads * d]
  int rows, longest, heads, kv_heads, d;
  bool causal;
  int window;  // keys seen on each side, or -1
  float epsilon, scale;

  int group() const { return heads / kv_heads; }
  int positions() const { return kLanes / group(); }  // of one query block
  int64_t stride() const { return (int64_t)(heads + 2 * kv_heads) * d; }
  int length(int row) const { return offsets[row + 1] - offsets[row]; }
  int key_blocks() const { return (longest + kKeyBlock - 1) / kKeyBlock; }
  int query_blocks() const { return (longest + positions() - 1) / positions(); }
  int64_t packed_floats() const { return 2 * (int64_t)longest * d; }  // keys, then values, of one (row, key head)
};

struct Kernels {
  const char* name;
  int max_rows;  // of a register tile
  // y[rows x 32] = packed rows of x * panel, over k; added to y unless `first`. `words` of 32 bits a row of the panel: 16
  // for bfloat16, 32 for float32. Meanwhile one of `parts` equal parts of the block at `ahead` is fetched into the cache,
  // the first-level one if `near`.
  void (*tile)(int words, int rows, const float* x, const uint32_t* panel, int k, float* y, int64_t ldy, bool first,
               const char* ahead, int parts, bool near);
  void (*pack)(int rows, const float* x, int64_t ldx, int k, float* packed);
  void (*norm)(const NormCall&, int64_t row);
  void (*gate)(Gate, const float* x, const float* factor, float* y, int64_t n);  // factor may be null
  void (*pack_keys)(const AttentionCall&, int row, int kv_head, int key_block, float* packed);
  void (*attend)(const AttentionCall&, int row, int kv_head, int query_block, const float* packed);
};

// What is wrong with how this thread computes, or null: denormals flushed to zero, another rounding than to nearest.
const char* float_environment_problem();

// The best this processor has, or null. $SAMEVEC_INSTRUCTION_SET names another.
const Kernels* find_kernels();

struct ProductCall {
  const Kernels* kernels;
  int words;  // 16: bfloat16 weights, 32: float32
  const float* x;
  const uint32_t* panels;
  const float* bias;  // or null
  float* y;
  int64_t m;
  int k, n;
  uint64_t id;    // the first of `blocks` numbers that no other call has
  int64_t blocks;  // equal parts of the rows, at most kBlockRows each

  int panel_count() const { return (n + kPanelColumns - 1) / kPanelColumns; }
  int64_t tasks() const { return blocks * panel_count(); }
};
ProductCall make_product(const Kernels*, int words, const float* x, const uint32_t* panels, const float* bias, float* y,
                         int64_t m, int k, int n);
// One panel of one block of rows. False where there is no memory for the packed rows.
bool run_product_task(const ProductCall&, int64_t task);

// All of one (row, key head) by one thread; false where there is no memory.
bool attend_unit(const Kernels&, const AttentionCall&, int64_t unit);

enum class Pool { first, last, mean };
void pool_row(Pool, const float* x, int length, int n, float* y);

// Memory of one thread, kept for its next call; grows, is freed when the thread ends.
class Scratch {
 public:
  ~Scratch();
  float* need(size_t n_floats);  // null where there is none
  uint64_t content = 0;          // the block that it holds; 0 after it grew

 private:
  float* data_ = nullptr;
  size_t n_floats_ = 0;
};

}  // namespace samevec

extern "C" {
int samevec_arithmetic();
const char* samevec_instruction_set();
const char* samevec_float_environment();
void samevec_unit_norm(const float* x, int64_t n_rows, int64_t n, float* y);
void samevec_sigmoid(const float* x, int64_t n, double* y);
int64_t samevec_selftest(char* text, int64_t size);
}
