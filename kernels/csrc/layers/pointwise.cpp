// What is done to each entry by itself, in one pass over memory; the result may be written over an argument.
#include "core/ops.h"
#include "core/parallel.h"
#include "layers/columns.h"

namespace SPARSE_ISA {
namespace {

// y[i] = f(a[i], b[i])
template <typename F> void each(const float* a, const float* b, float* y, int64_t n, int threads, F f) {
  constexpr int64_t CHUNK = 1 << 15;  // entries a thread takes at a time
  constexpr int UNROLL = 4;
  parallel_for((n + CHUNK - 1) / CHUNK, threads, [&](int64_t chunk) {
    const int64_t end = (chunk + 1) * CHUNK < n ? (chunk + 1) * CHUNK : n;
    int64_t i = chunk * CHUNK;
    for (; i + UNROLL * W <= end; i += UNROLL * W)
      for (int r = 0; r < UNROLL; r++) store(y + i + r * W, f(load(a + i + r * W), load(b + i + r * W)));
    for (; i < end; i += W) store_until(y + i, f(load_until(a + i, a + end), load_until(b + i, b + end)), y + end);
  });
}

}  // namespace

void add(const float* a, const float* b, float* y, int64_t n, int threads) {
  each(a, b, y, n, threads, [](vf a, vf b) { return a + b; });
}

void add_relu(const float* a, const float* b, float* y, int64_t n, int threads) {
  each(a, b, y, n, threads, [](vf a, vf b) { return positive(a + b); });
}

void relu(const float* x, float* y, int64_t n, int threads) {
  each(x, x, y, n, threads, [](vf x, vf) { return positive(x); });
}

void relu_backward(const float* y, const float* dy, float* dx, int64_t n, int threads) {
  each(y, dy, dx, n, threads, where_positive);
}

}  // namespace SPARSE_ISA
