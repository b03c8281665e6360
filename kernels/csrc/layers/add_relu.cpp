// y = max(a + b, 0) in one pass; y may be a.
#include "core/ops.h"
#include "core/parallel.h"
#include "layers/columns.h"

namespace SPARSE_ISA {

void add_relu(const float* a, const float* b, float* y, int64_t n, int threads) {
  constexpr int64_t CHUNK = 1 << 15;  // entries a thread takes at a time
  constexpr int UNROLL = 4;
  parallel_for((n + CHUNK - 1) / CHUNK, threads, [&](int64_t chunk) {
    const int64_t end = (chunk + 1) * CHUNK < n ? (chunk + 1) * CHUNK : n;
    int64_t i = chunk * CHUNK;
    for (; i + UNROLL * W <= end; i += UNROLL * W)
      for (int r = 0; r < UNROLL; r++) store(y + i + r * W, positive(load(a + i + r * W) + load(b + i + r * W)));
    for (; i < end; i += W)
      store_until(y + i, positive(load_until(a + i, a + end) + load_until(b + i, b + end)), y + end);
  });
}

}  // namespace SPARSE_ISA
