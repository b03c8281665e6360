// Squared distance of two packed models, segment by segment: both are expanded, W entries at a time, and subtracted;
// where a word of both patterns is the same, their values are compared as they lie.
#include "core/ops.h"
#include "core/parallel.h"
#include "core/simd.h"

namespace SPARSE_ISA {
namespace {

constexpr int BLOCK = 32;  // words summed in float

struct Side {
  const uint64_t* words;
  const float *values, *end;
};

double segment(Side a, Side b, int64_t num_words) {
  double total = 0;
  for (int64_t block = 0; block < num_words; block += BLOCK) {
    vf acc[2] = {};
    for (int64_t i = block; i < block + BLOCK && i < num_words; i++) {
      const uint64_t ma = a.words[i], mb = b.words[i];
      if (ma == mb) {
        const int n = popcount(ma);
        for (int at = 0; at < n; at += W) {
          const int left = n - at < W ? n - at : W;
          const vf d =
              load_until(a.values + at, a.values + at + left) - load_until(b.values + at, b.values + at + left);
          acc[at / W & 1] += d * d;
        }
        a.values += n, b.values += n;
        continue;
      }
      for (int k = 0; k < STEPS; k++) {
        const uint32_t bits_a = ma >> (k * W) & ALL, bits_b = mb >> (k * W) & ALL;
        const vf d = expand(load_until(a.values, a.end), bits_a) - expand(load_until(b.values, b.end), bits_b);
        acc[k & 1] += d * d;
        a.values += popcount(bits_a), b.values += popcount(bits_b);
      }
    }
    total += sum(acc[0] + acc[1]);
  }
  return total;
}

}  // namespace

void drift(Packed a, Packed b, const int64_t* offsets_a, const int64_t* offsets_b, Segments segments, double* squares,
           int threads) {
  parallel_for(segments.count, threads, [&](int64_t l) {
    const int64_t first = segments.starts[l];
    squares[l] = segment({a.words + first, a.values + offsets_a[l], a.values + a.nnz},
                         {b.words + first, b.values + offsets_b[l], b.values + b.nnz}, segments.starts[l + 1] - first);
  });
}

// Squared distances of the runs [first, end) of two arenas, given as pairs.
void drift_of_runs(const float* a, const float* b, const int64_t* runs, int64_t count, double* squares) {
  for (int64_t k = 0; k < count; k++) {
    double sums[8] = {};
    for (int64_t i = runs[2 * k]; i < runs[2 * k + 1]; i++) {
      const double d = double(a[i]) - b[i];
      sums[(i - runs[2 * k]) & 7] += d * d;
    }
    squares[k] = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  }
}

}  // namespace SPARSE_ISA
