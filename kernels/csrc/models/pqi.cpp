// p- and q-norms of every segment. Powers 1/2, 1 and 2 are vectorised and take one pass; other powers are computed in
// double, scaled by the largest entry (a pass before), so that none under- or overflows.
// Sums run in fixed blocks: lanes in float within a block, blocks in double, in order. Threads do not change them.
#include <math.h>

#include "core/ops.h"
#include "core/parallel.h"
#include "core/simd.h"

namespace SPARSE_ISA {
namespace {

constexpr int64_t CHUNK = 1 << 16;  // entries of one partial sum
constexpr int64_t BLOCK = 2048;     // entries summed in float
constexpr int64_t AHEAD = 512;      // entries to prefetch: the square roots keep the hardware from running ahead

enum Power { HALF, ONE, TWO };

template <Power P> vf power(vf a) { return P == HALF ? root(a) : P == ONE ? a : a * a; }

template <Power P, Power Q> void fast(const float* w, int64_t n, double out[2]) {
  for (int64_t block = 0; block < n; block += BLOCK) {
    const int64_t end = block + BLOCK < n ? block + BLOCK : n;
    constexpr int UNROLL = 4;
    vf p[UNROLL] = {}, q[UNROLL] = {};
    int64_t i = block;
    for (; i + UNROLL * W <= end; i += UNROLL * W)
      for (int r = 0; r < UNROLL; r++) {
        const vf a = absolute(load(w + i + r * W));
        __builtin_prefetch(w + i + r * W + AHEAD);
        p[r] += power<P>(a);
        q[r] += power<Q>(a);
      }
    for (; i < end; i += W) {
      const vf a = absolute(load_until(w + i, w + end));
      p[0] += power<P>(a);
      q[0] += power<Q>(a);
    }
    out[0] += sum((p[0] + p[1]) + (p[2] + p[3]));
    out[1] += sum((q[0] + q[1]) + (q[2] + q[3]));
  }
}

double largest(const float* w, int64_t n) {
  float most = 0;
  bool numbers = true;
  for (int64_t i = 0; i < n; i++) {
    const float a = fabsf(w[i]);
    numbers &= a == a;
    most = a > most ? a : most;
  }
  return numbers ? double(most) : double(NAN);
}

using Sums = void (*)(const float*, int64_t, double*);

Sums fast_sums(double p, double q) {
  if (p == 0.5 && q == 1) return fast<HALF, ONE>;
  if (p == 0.5 && q == 2) return fast<HALF, TWO>;
  if (p == 1 && q == 2) return fast<ONE, TWO>;
  return nullptr;
}

}  // namespace

// Sums of |w / top|^p and |w / top|^q over one segment: fast ones where there are any (top is 1), else by pow.
static void segment(const float* w, int64_t n, double top, double p, double q, Sums fast, double* total, int threads) {
  constexpr int64_t AT_ONCE = 256;  // partial sums held on the stack
  const int64_t chunks = (n + CHUNK - 1) / CHUNK;
  total[0] = total[1] = 0;
  for (int64_t first = 0; first < chunks; first += AT_ONCE) {
    double partial[AT_ONCE][2] = {};
    const int64_t here = chunks - first < AT_ONCE ? chunks - first : AT_ONCE;
    parallel_for(here, threads, [&](int64_t i) {
      const int64_t lo = (first + i) * CHUNK, m = n - lo < CHUNK ? n - lo : CHUNK;
      if (fast) return fast(w + lo, m, partial[i]);
      for (int64_t j = 0; j < m; j++) {
        const double a = fabs(double(w[lo + j])) / top;
        partial[i][0] += pow(a, p);
        partial[i][1] += pow(a, q);
      }
    });
    for (int64_t i = 0; i < here; i++) total[0] += partial[i][0], total[1] += partial[i][1];
  }
}

void pq_norms(const float* values, const int64_t* offsets, int64_t count, double p, double q, double* norms,
              int threads) {
  for (int64_t l = 0; l < count; l++) {
    const float* w = values + offsets[l];
    const int64_t n = offsets[l + 1] - offsets[l];
    if (n == 0) continue;
    double total[2], top = 1;
    Sums fast = fast_sums(p, q);
    if (fast) segment(w, n, top, p, q, fast, total, threads);
    if (!fast || !isfinite(total[0] + total[1])) {  // a float overflowed, or was not a number
      top = largest(w, n);
      if (!(top > 0)) {  // all zero, or not numbers
        norms[2 * l] = norms[2 * l + 1] = top;
        continue;
      }
      segment(w, n, top, p, q, nullptr, total, threads);
    }
    norms[2 * l] = top * pow(total[0], 1 / p);
    norms[2 * l + 1] = top * pow(total[1], 1 / q);
  }
}

}  // namespace SPARSE_ISA
