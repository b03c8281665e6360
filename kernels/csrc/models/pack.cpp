// pack: dense -> packed, unpack: packed -> dense, through the bitmap; W entries at a time by permutation.
#include "core/ops.h"
#include "core/parallel.h"
#include "core/simd.h"

namespace SPARSE_ISA {
namespace {

// One segment of `size` entries; writes exactly `n` values, a neighbouring segment may be written at the same time.
void pack_segment(const float* dense, int64_t size, const uint64_t* words, float* out, int64_t n) {
  const float *dense_end = dense + size, *out_end = out + n;
  for (int64_t i = 0; i * 64 < size; i++, dense += 64) {
    uint64_t m = words[i];
    if (dense_end - dense >= 64 && out_end - out >= 64) {  // no edge near
      if (m == ~0ull) {
        memcpy(out, dense, 64 * sizeof(float));
        out += 64;
        continue;
      }
      for (int k = 0; k < STEPS; k++) {
        const uint32_t bits = m >> (k * W) & ALL;
        store(out, compress(load(dense + k * W), bits));
        out += popcount(bits);
      }
    } else {
      for (; m; m &= m - 1) *out++ = dense[__builtin_ctzll(m)];
    }
  }
}

void unpack_segment(const float* values, int64_t n, const uint64_t* words, float* dense, int64_t size) {
  const float *end = values + n, *dense_end = dense + size;
  for (int64_t i = 0; i * 64 < size; i++, dense += 64) {
    const uint64_t m = words[i];
    if (dense_end - dense >= 64 && end - values >= 64) {
      for (int k = 0; k < STEPS; k++) {
        const uint32_t bits = m >> (k * W) & ALL;
        store(dense + k * W, load_expand(values, bits));
        values += popcount(bits);
      }
    } else {
      for (int64_t j = 0; j < 64 && dense + j < dense_end; j++) dense[j] = m >> j & 1 ? *values++ : 0.0f;
    }
  }
}

}  // namespace

void pack(const float* dense, const uint64_t* words, const int64_t* offsets, Segments segments, float* out,
          int threads) {
  parallel_for(segments.count, threads, [&](int64_t l) {
    pack_segment(dense + segments.dense[l], segments.dense[l + 1] - segments.dense[l], words + segments.starts[l],
                 out + offsets[l], offsets[l + 1] - offsets[l]);
  });
}

void unpack(const float* values, const uint64_t* words, const int64_t* offsets, Segments segments, float* out,
            int threads) {
  parallel_for(segments.count, threads, [&](int64_t l) {
    unpack_segment(values + offsets[l], offsets[l + 1] - offsets[l], words + segments.starts[l],
                   out + segments.dense[l], segments.dense[l + 1] - segments.dense[l]);
  });
}

}  // namespace SPARSE_ISA
