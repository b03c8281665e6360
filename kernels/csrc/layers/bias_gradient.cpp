// db[channel] = sum over positions and samples of dy [channel][size]: in float within a run, in double over the runs.
#include "core/ops.h"
#include "core/parallel.h"
#include "core/simd_bf16.h"

namespace SPARSE_ISA {
namespace {

constexpr int ACROSS = 4;                  // vectors side by side
constexpr int64_t RUN = 64 * ACROSS * 16;  // entries: at most 256 in a lane, on every instruction set

template <typename T> double total(const T* p, int64_t n) {
  vf sums[ACROSS] = {};
  int64_t i = 0;
  for (; i + ACROSS * W <= n; i += ACROSS * W)
    for (int k = 0; k < ACROSS; k++) sums[k] += load(p + i + k * W);
  for (; i < n; i += W) sums[0] += load_until(p + i, p + n);
  return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

template <typename T> void gradient(int64_t channels, int64_t size, const T* dy, float* db, int threads) {
  constexpr int64_t CHUNK = 1 << 15;  // entries a thread takes at a time, at least
  const int64_t few = size < CHUNK ? CHUNK / (size < 1 ? 1 : size) : 1;
  parallel_for((channels + few - 1) / few, threads, [&](int64_t chunk) {
    const int64_t end = (chunk + 1) * few < channels ? (chunk + 1) * few : channels;
    for (int64_t c = chunk * few; c < end; c++) {
      double all = 0;
      for (int64_t i = 0; i < size; i += RUN) all += total(dy + c * size + i, size - i < RUN ? size - i : RUN);
      db[c] = float(all);
    }
  });
}

}  // namespace

void bias_gradient(int64_t channels, int64_t size, const float* dy, float* db, int threads) {
  gradient(channels, size, dy, db, threads);
}

void bias_gradient_bf16(int64_t channels, int64_t size, const bf16* dy, float* db, int threads) {
  gradient(channels, size, dy, db, threads);
}

}  // namespace SPARSE_ISA
