// What is done to each entry by itself, in one pass over memory; the result may be written over an argument.
#include "core/ops.h"
#include "core/parallel.h"
#include "layers/columns.h"

namespace SPARSE_ISA {
namespace {

// y[i] = f(a[i], b[i])
template <typename T, typename F> void each(const T* a, const T* b, T* y, int64_t n, int threads, F f) {
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

const auto sum_of = [](vf a, vf b) { return a + b; };
const auto positive_sum = [](vf a, vf b) { return positive(a + b); };
const auto positive_first = [](vf a, vf) { return positive(a); };

// As `each`, from one type to another.
template <typename From, typename To> void convert(const From* x, To* y, int64_t n, int threads) {
  constexpr int64_t CHUNK = 1 << 15;
  parallel_for((n + CHUNK - 1) / CHUNK, threads, [&](int64_t chunk) {
    const int64_t end = (chunk + 1) * CHUNK < n ? (chunk + 1) * CHUNK : n;
    for (int64_t i = chunk * CHUNK; i < end; i += W) store_until(y + i, load_until(x + i, x + end), y + end);
  });
}

}  // namespace

void add(const float* a, const float* b, float* y, int64_t n, int threads) { each(a, b, y, n, threads, sum_of); }

void add_relu(const float* a, const float* b, float* y, int64_t n, int threads) {
  each(a, b, y, n, threads, positive_sum);
}

void relu(const float* x, float* y, int64_t n, int threads) { each(x, x, y, n, threads, positive_first); }

void relu_backward(const float* y, const float* dy, float* dx, int64_t n, int threads) {
  each(y, dy, dx, n, threads, where_positive);
}

void add_bf16(const bf16* a, const bf16* b, bf16* y, int64_t n, int threads) { each(a, b, y, n, threads, sum_of); }

void add_relu_bf16(const bf16* a, const bf16* b, bf16* y, int64_t n, int threads) {
  each(a, b, y, n, threads, positive_sum);
}

void relu_bf16(const bf16* x, bf16* y, int64_t n, int threads) { each(x, x, y, n, threads, positive_first); }

void relu_backward_bf16(const bf16* y, const bf16* dy, bf16* dx, int64_t n, int threads) {
  each(y, dy, dx, n, threads, where_positive);
}

void widen(const bf16* x, float* y, int64_t n, int threads) { convert(x, y, n, threads); }

void narrow(const float* x, bf16* y, int64_t n, int threads) { convert(x, y, n, threads); }

}  // namespace SPARSE_ISA
