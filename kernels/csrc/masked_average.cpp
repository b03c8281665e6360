// Mask-weighted average of packed models, a block of the bitmaps at a time: sums of all models for the block stay in
// L1, and each model's values are one contiguous run.
//
// A block that the mask fills well is summed in its dense positions: W values at a time are expanded by the model's
// bits and added, the models counted in bit planes, and at the end the mask compresses the result. In a thin block few
// entries are both the mask's and a model's, and only those are touched, in the mask's own packed positions. They are
// taken in passes, the first common entry of every word, then the second, ..., so that no branch depends on the data.
#include "declare.h"
#include "parallel.h"
#include "simd.h"

namespace SPARSE_ISA {
namespace {

constexpr int64_t CHUNK = 1 << 12;  // words a thread takes at a time
constexpr int BLOCK = 32;           // words of a block
constexpr int THIN = BLOCK * 64 / 4;  // fewer wanted entries in a block: a thin one
constexpr int MOST_PLANES = 12;     // 4095 models

struct Stream {
  const uint64_t* words;
  const float *values, *end;
  int64_t ahead;  // values of the last block: about where the next one's are, to prefetch
};

// A block of the mask: its bits, and the packed position of each word's first entry.
struct Target {
  const uint64_t* words;
  int n;
  int first[BLOCK + 1];
};

struct Dense {
  alignas(64) float sums[BLOCK * 64];

  // Adds a block of a model, whose values start at p; returns where its next block starts.
  const float* add(const Target& target, const uint64_t* words, const float* p, int64_t ahead) {
    float* sum = sums;
    for (int i = 0; i < target.n; i++, sum += 64) {
      const uint64_t m = words[i];
      __builtin_prefetch(p + ahead, 0, 2);
      __builtin_prefetch(p + ahead + 16, 0, 2);
      if (m == ~0ull) {
        for (int k = 0; k < 64; k += W) store(sum + k, load(sum + k) + load(p + k));
        p += 64;
      } else {
        for (int k = 0; k < 64; k += W) {
          const uint32_t bits = m >> k & ALL;
          store(sum + k, load(sum + k) + load_expand(p, bits));
          p += popcount(bits);
        }
      }
    }
    return p;
  }
};

// How many models have each of the 64 entries of a word: bit i of plane b is bit b of entry i's count.
template <int PLANES> struct Counts {
  uint64_t plane[PLANES][BLOCK];

  void add(const uint64_t* words, int n) {
    for (int i = 0; i < n; i++) {
      uint64_t bits = words[i];
      for (int b = 0; b < PLANES; b++) {
        const uint64_t carry = plane[b][i] & bits;
        plane[b][i] ^= bits;
        bits = carry;
      }
    }
  }

  // Entries [at, at + W) of word i.
  vi lanes(int i, int at) const {
    vi count = {};
    if (PLANES == 4 && W == 8 && FAST_PEXT) {  // eight counts as the nibbles of one number
      uint64_t nibbles = 0;
      for (int b = 0; b < PLANES; b++) nibbles |= pdep(plane[b][i] >> at, 0x11111111ull << b);
      return splat(int32_t(nibbles)) >> (4 * iota()) & 15;
    }
    for (int b = 0; b < PLANES; b++) count |= ((splat(int32_t(plane[b][i] >> at & ALL)) >> iota()) & 1) << b;
    return count;
  }
};

vf quotient(vf sum, vi count) { return sum / to_float(count - (count == 0)); }

struct Thin {
  alignas(64) float sums[THIN + 64];
  alignas(64) int32_t counts[THIN + 64];
  struct Common {
    uint64_t bits;  // entries of a word that both have and that are still to be added
    int32_t word, at;  // at: the model's first value of that word
  } common[BLOCK];

  const float* add(const Target& target, const uint64_t* words, const float* p, int64_t ahead) {
    int left = 0, at = 0;
    for (int i = 0; i < target.n; i++) {
      const uint64_t both = words[i] & target.words[i];
      common[left] = {both, i, at};
      left += both != 0;
      __builtin_prefetch(p + at + ahead, 0, 2);
      at += popcount(words[i]);
    }
    while (left > 0) {
      int again = 0;
      for (int k = 0; k < left; k++) {
        Common c = common[k];
        const uint64_t upto = c.bits ^ (c.bits - 1);  // the lowest of the bits and all below
        const int to = target.first[c.word] + popcount(target.words[c.word] & upto) - 1;
        sums[to] += p[c.at + popcount(words[c.word] & upto) - 1];
        counts[to]++;
        c.bits &= c.bits - 1;
        common[again] = c;
        again += c.bits != 0;
      }
      left = again;
    }
    return p + at;
  }
};

int64_t count(const uint64_t* words, int64_t n) {
  int64_t total = 0;
  for (int64_t i = 0; i < n; i++) total += popcount(words[i]);
  return total;
}

// Words [lo, hi); streams stand at the values of word lo. Writes exactly [out, out_end).
template <int PLANES>
void average(const uint64_t* mask, int64_t lo, int64_t hi, Stream* streams, int models, float* out, float* out_end) {
  Dense dense;
  Thin thin;
  Counts<PLANES> counts;
  Target target;
  alignas(64) float spare[BLOCK * 64 + W] = {};
  for (int64_t at = lo; at < hi; at += BLOCK) {
    target.words = mask + at;
    target.n = hi - at < BLOCK ? hi - at : BLOCK;
    target.first[0] = 0;
    for (int i = 0; i < target.n; i++) target.first[i + 1] = target.first[i] + popcount(target.words[i]);
    const int wanted = target.first[target.n];
    const bool few = wanted <= THIN;
    if (few) {
      memset(thin.sums, 0, sizeof(float) * wanted);
      memset(thin.counts, 0, sizeof(int32_t) * wanted);
    } else {
      memset(dense.sums, 0, sizeof(float) * 64 * target.n);
      memset(&counts, 0, sizeof counts);
    }
    for (int j = 0; j < models; j++) {
      Stream& s = streams[j];
      const uint64_t* words = s.words + at;
      const float* p = s.values;
      const int64_t left = s.end - p;
      for (int w = 0; w < BLOCK; w += 8) __builtin_prefetch(words + BLOCK + w, 0, 2);
      if (left < BLOCK * 64 + W) {  // the model's end is near: a copy may be read beyond it
        memcpy(spare, p, sizeof(float) * (left < BLOCK * 64 ? left : BLOCK * 64));
        p = spare;
      }
      const float* next;
      if (few) {
        next = thin.add(target, words, p, s.ahead);
      } else {
        counts.add(words, target.n);
        next = dense.add(target, words, p, s.ahead);
      }
      s.values += s.ahead = next - p;
    }
    if (few) {
      for (int k = 0; k < wanted; k += W)
        store_until(out + k, quotient(load(thin.sums + k), load(thin.counts + k)), out + wanted);
      out += wanted;
    } else {
      for (int i = 0; i < target.n; i++)
        for (int k = 0; k < 64; k += W) {
          const uint32_t bits = target.words[i] >> k & ALL;
          const vf mean = quotient(load(dense.sums + i * 64 + k), counts.lanes(i, k));
          store_until(out, compress(mean, bits), out_end);
          out += popcount(bits);
        }
    }
  }
}

}  // namespace

void masked_average(const uint64_t* mask, int64_t num_words, const Packed* models, int num_models, float* out,
                    int64_t n, int threads) {
  const int64_t chunks = threads > 1 ? (num_words + CHUNK - 1) / CHUNK : 1;
  const int64_t size = chunks > 1 ? CHUNK : num_words;
  const int64_t stride = num_models + 1;
  int64_t* first = new int64_t[(chunks + 1) * stride]();  // where chunk c's values start: [c][mask, models]
  if (chunks > 1) {
    parallel_for(chunks - 1, threads, [&](int64_t c) {
      for (int j = 0; j < stride; j++)
        first[(c + 1) * stride + j] = count((j ? models[j - 1].words : mask) + c * size, size);
    });
    for (int64_t c = 1; c < chunks; c++)
      for (int j = 0; j < stride; j++) first[c * stride + j] += first[(c - 1) * stride + j];
  }
  first[chunks * stride] = n;
  parallel_for(chunks, threads, [&](int64_t c) {
    Stream* streams = new Stream[num_models];
    for (int j = 0; j < num_models; j++)
      streams[j] = {models[j].words, models[j].values + first[c * stride + 1 + j], models[j].values + models[j].nnz, 0};
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
