// The input gradient of a linear layer whose batch is within a tile, in the order of its forward pass: bringing the
// weights into the transposed order would be half of the work.
#include "layers/conv_weights.h"

namespace SPARSE_ISA {
namespace {

// x of n weights of one row, each at its offset, += the weight times d.
template <int V>
static SPARSE_INLINE void spread(const uint32_t* offsets, const float* weights, int n, const vf (&d)[V], float* x) {
  const auto add = [&](vf w, const float* at) {
    float* to = const_cast<float*>(at);
    SPARSE_UNROLL
    for (int r = 0; r < V; r++) store(to + r * W, load(to + r * W) + w * d[r]);
  };
  for (; n >= 4; n -= 4, offsets += 4, weights += 4) {
    const Four to(x, offsets);
    const Weights w(weights);
    add(w.get<0>(), to.at[0]);
    add(w.get<1>(), to.at[1]);
    add(w.get<2>(), to.at[2]);
    add(w.get<3>(), to.at[3]);
  }
  for (; n > 0; n--, offsets++, weights++) add(splat(*weights), moved(x, *offsets));
}

// dx of a block of input channels: the rows pass by, group after group.
template <int V>
void scatter_block(const ConvPlanes& p, const ConvWeights& w, int64_t block, int64_t group, int64_t b, const float* dy,
                   const float* weights, float* dx) {
  const VisitList visits(w);
  const int64_t first = b * block, channels = smaller(block, p.channels - first), blocks = w.visits / w.rows;
  const bool direct = p.plane_size == p.batch && p.batch % W == 0;
  const Scratch<float> memory(direct ? 0 : channels * p.plane_size, "a block of a linear layer's input gradients");
  float* x = direct ? dx + first * p.batch : memory;
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
  for (int64_t c = 0; c < channels && !direct; c++) copy(dx + (first + c) * p.batch, x + c * p.plane_size, p.batch);
}

}  // namespace

// dx [channels][batch] of a linear layer whose batch is within a tile.
void conv_scatter(ConvPlanes planes, ConvWeights w, int64_t block, int64_t group, const float* dy, const float* weights,
                  float* dx, int threads) {
  constexpr decltype(&scatter_block<1>) RUN[] = SPARSE_ROW_KERNELS(scatter_block);
  const auto run = RUN[(planes.batch + W - 1) / W - 1];
  parallel_for(w.visits / w.rows, threads, [&](int64_t b) { run(planes, w, block, group, b, dy, weights, dx); });
}

}  // namespace SPARSE_ISA
