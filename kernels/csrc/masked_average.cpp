// Mask-weighted average of packed models, one word of the bitmaps (64 entries) at a time, all models together.
//
// A word that the mask fills well is summed in its 64 dense positions, in registers: each model's next values are
// expanded by its bits and added, and at the end the mask compresses the result. A word where the mask has few bits
// is summed in the mask's own packed positions: of a model's next W values, those that the mask wants are compressed
// to the front and expanded to their places, so the cost goes with the stored entries, not with the 64 positions.
// How many models have an entry is counted for 64 entries at once, in bit planes.
#include "declare.h"
#include "parallel.h"
#include "simd.h"

namespace SPARSE_ISA {
namespace {

constexpr int64_t CHUNK = 1 << 12;  // words a thread takes at a time
constexpr int MOST_PLANES = 12;     // 4095 models

struct Stream {
  const uint64_t* words;
  const float *values, *end;
};

// Counters of 64 entries: bit i of plane b is bit b of entry i's count.
template <int PLANES> struct Counts {
  uint64_t plane[PLANES] = {};

  void add(uint64_t bits) {
    for (int b = 0; b < PLANES; b++) {
      const uint64_t carry = plane[b] & bits;
      plane[b] ^= bits;
      bits = carry;
    }
  }

  // The counts of entries [at, at + W), at least 1.
  vf lanes(int at) const {
    const vi shift = iota();
    vi count = {};
    for (int b = 0; b < PLANES; b++) count |= ((splat(int32_t(plane[b] >> at & ALL)) >> shift) & 1) << b;
    count -= count == 0;
    return to_float(count);
  }
};

// At least 64 readable values from s.values on: where fewer are left, a zero-padded copy of them.
const float* next_values(const Stream& s, float* spare) {
  const int64_t left = s.end - s.values;
  if (__builtin_expect(left >= 64 + W, 1)) return s.values;
  memset(spare, 0, (64 + W) * sizeof(float));
  memcpy(spare, s.values, (left < 64 ? left : 64) * sizeof(float));
  return spare;
}

template <int PLANES> void dense_word(uint64_t m, int64_t i, Stream* streams, int models, float* out, float* spare) {
  vf acc[STEPS] = {};
  Counts<PLANES> counts;
  for (int j = 0; j < models; j++) {
    Stream& s = streams[j];
    const uint64_t mj = s.words[i];
    const float* p = next_values(s, spare);
    counts.add(mj);
    if (mj == ~0ull) {
      for (int k = 0; k < STEPS; k++) acc[k] += load(p + k * W);
    } else {
      for (int k = 0; k < STEPS; k++) {
        const uint32_t bits = mj >> (k * W) & ALL;
        acc[k] += expand(load(p), bits);
        p += popcount(bits);
      }
    }
    s.values += popcount(mj);
  }
  for (int k = 0; k < STEPS; k++) {
    const uint32_t bits = m >> (k * W) & ALL;
    store(out, compress(acc[k] / counts.lanes(k * W), bits));
    out += popcount(bits);
  }
}

// At most GROUPS * W bits in m. Sums are in the packed positions of m.
template <int PLANES, int GROUPS>
void sparse_word(uint64_t m, int64_t i, Stream* streams, int models, float* out, float* spare) {
  vf acc[GROUPS] = {};
  Counts<PLANES> counts;
  for (int j = 0; j < models; j++) {
    Stream& s = streams[j];
    uint64_t mj = s.words[i];
    const int n = popcount(mj);
    const float* p = next_values(s, spare);
    counts.add(pext(mj, m));
    for (int at = 0; at < n; at += W, p += W) {
      const uint64_t part = n - at <= W ? mj : pdep(ALL, mj);  // the positions of the next W values
      mj ^= part;
      const uint64_t to = pext(part, m);
      const vf wanted = compress(load(p), uint32_t(pext(m, part)));
      acc[0] += expand(wanted, to & ALL);
      if (GROUPS == 2) acc[1] += expand(wanted, to >> W & ALL, popcount(to & ALL));
    }
    s.values += n;
  }
  for (int g = 0; g < GROUPS; g++) store(out + g * W, acc[g] / counts.lanes(g * W));
}

// Words [lo, hi); streams stand at the values of word lo. Writes exactly [out, out_end).
template <int PLANES>
void average(const uint64_t* mask, int64_t lo, int64_t hi, Stream* streams, int models, float* out, float* out_end) {
  float spare[64 + W], last[64 + W];
  for (int64_t i = lo; i < hi; i++) {
    const uint64_t m = mask[i];
    const int n = popcount(m);
    float* to = out_end - out >= 64 + W ? out : last;
    if (n == 0)
      for (int j = 0; j < models; j++) streams[j].values += popcount(streams[j].words[i]);
    else if (FAST_PEXT && n <= W)
      sparse_word<PLANES, 1>(m, i, streams, models, to, spare);
    else if (FAST_PEXT && n <= 2 * W)
      sparse_word<PLANES, 2>(m, i, streams, models, to, spare);
    else
      dense_word<PLANES>(m, i, streams, models, to, spare);
    if (to == last) memcpy(out, last, n * sizeof(float));
    out += n;
  }
}

int64_t count(const uint64_t* words, int64_t lo, int64_t hi) {
  int64_t n = 0;
  for (int64_t i = lo; i < hi; i++) n += popcount(words[i]);
  return n;
}

}  // namespace

void masked_average(const uint64_t* mask, int64_t num_words, const Packed* models, int num_models, float* out,
                    int64_t n, int threads) {
  const int64_t chunks = threads > 1 ? (num_words + CHUNK - 1) / CHUNK : 1;
  const int64_t size = chunks > 1 ? CHUNK : num_words;
  int64_t* first = new int64_t[(chunks + 1) * (num_models + 1)]();  // where chunk c's values start: [c][mask, models]
  const int64_t stride = num_models + 1;
  if (chunks > 1) {
    parallel_for(chunks - 1, threads, [&](int64_t c) {
      for (int j = 0; j < stride; j++)
        first[(c + 1) * stride + j] = count(j ? models[j - 1].words : mask, c * size, (c + 1) * size);
    });
    for (int64_t c = 1; c < chunks; c++)
      for (int j = 0; j < stride; j++) first[c * stride + j] += first[(c - 1) * stride + j];
  }
  first[chunks * stride] = n;
  parallel_for(chunks, threads, [&](int64_t c) {
    Stream* streams = new Stream[num_models];
    for (int j = 0; j < num_models; j++)
      streams[j] = {models[j].words, models[j].values + first[c * stride + 1 + j], models[j].values + models[j].nnz};
    const int64_t lo = c * size, hi = lo + size < num_words ? lo + size : num_words;
    float *from = out + first[c * stride], *to = out + first[(c + 1) * stride];
    if (num_models < 16)
      average<4>(mask, lo, hi, streams, num_models, from, to);
    else
      average<MOST_PLANES>(mask, lo, hi, streams, num_models, from, to);
    delete[] streams;
  });
  delete[] first;
}

}  // namespace SPARSE_ISA
