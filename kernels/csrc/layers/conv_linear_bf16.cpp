// The input gradient of a linear layer on bfloat16 tensors, as conv_linear.cpp: in the order of the forward pass. Sums
// are float, and so are the weights: each is used once, so that rounding it first would be a pass of its own.
#include "layers/conv_pairs.h"

namespace SPARSE_ISA {
namespace {

// x of n weights of one row, each at its offset (in bytes of bfloat16), += the weight times d.
template <int V>
static SPARSE_INLINE void spread(const uint32_t* offsets, const float* weights, int n, const vf (&d)[V], float* x) {
  for (int i = 0; i < n; i++) {
    float* to = x + offsets[i] / sizeof(bf16);
    const vf w = splat(weights[i]);
    SPARSE_UNROLL
    for (int r = 0; r < V; r++) store(to + r * W, load(to + r * W) + w * d[r]);
  }
}

// dx of a block of input channels: the rows pass by, group after group.
template <int V>
void scatter_block(const ConvPlanes& p, const ConvWeights& w, int64_t block, int64_t group, int64_t b, const bf16* dy,
                   const float* weights, bf16* dx) {
  const VisitList visits(w);
  const int64_t first = b * block, channels = smaller(block, p.channels - first), blocks = w.visits / w.rows;
  const Scratch<float> memory(channels * p.plane_size, "a block of a linear layer's input gradients");
  float* x = memory;
  memset(x, 0, channels * p.plane_size * sizeof(float));
  float* base = x - first * p.plane_size;
  for (int64_t row = 0; row < w.rows; row += group) {
    const int64_t size = smaller(group, w.rows - row), k0 = row * blocks + b * size;
    for (int64_t k = k0; k < k0 + size; k++) {
      const int32_t start = visits.starts[k], n = visits.starts[k + 1] - start;
      visits.fetch_ahead(weights, k);
      if (!n) continue;
      vf d[V];  // beyond the batch are columns of another row, which nobody reads; beyond the last row is nothing
      for (int r = 0; r < V; r++) d[r] = load_until(dy + visits.order[k] * p.batch + r * W, dy + w.rows * p.batch);
      spread<V>(visits.offsets + start, weights + visits.at[k], n, d, base);
    }
  }
  for (int64_t c = 0; c < channels; c++) copy(dx + (first + c) * p.batch, x + c * p.plane_size, p.batch);
}

}  // namespace

// dx [channels][batch] of a linear layer whose batch is within a tile.
void conv_scatter_bf16(ConvPlanes planes, ConvWeights w, int64_t block, int64_t group, const bf16* dy,
                       const float* weights, bf16* dx, int threads) {
  constexpr decltype(&scatter_block<1>) RUN[] = SPARSE_ROW_KERNELS(scatter_block);
  const auto run = RUN[(planes.batch + W - 1) / W - 1];
  parallel_for(w.visits / w.rows, threads, [&](int64_t b) { run(planes, w, block, group, b, dy, weights, dx); });
}

}  // namespace SPARSE_ISA
