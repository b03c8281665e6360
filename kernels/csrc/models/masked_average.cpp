// Mask-weighted average of packed models, a block of the bitmaps at a time: sums of all models for the block stay in
// L1, and each model's values are one contiguous run.
//
// A block that the mask fills well is summed in its dense positions: W values at a time are expanded by the model's
// bits and added, and at the end the mask compresses the result. A thin block is summed in the mask's own packed
// positions. How many models have an entry is counted for 64 entries at once, in bit planes.
#include "core/ops.h"
#include "core/parallel.h"
#include "core/scratch.h"
#include "core/simd.h"

namespace SPARSE_ISA {
namespace {

constexpr int64_t CHUNK = 1 << 12;    // words a thread takes at a time
constexpr int BLOCK = 32;             // words of a block
constexpr int UNITS = BLOCK * 5 / 2;  // a thin block has no more: others are cheaper by dense positions
constexpr int MOST_PLANES = 12;       // 4095 models

struct Stream {
  const uint64_t* words;
  const float *values, *end;
  int64_t ahead;  // values of the last block: about where the next one's are, to prefetch
};

// A block of the mask.
struct Target {
  const uint64_t* words;
  int n;
};

struct Dense {
  alignas(64) float sums[BLOCK * 64];

  // Adds a block of a model, whose values start at p; returns where its next block starts.
  const float* add(const uint64_t* words, int n, const float* p, int64_t ahead) {
    float* sum = sums;
    for (int i = 0; i < n; i++, sum += 64) {
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

  // Sums of the W entries of word i from `at` on, divided; with `packed`, of the first W that it has.
  vf divide(vf sum, int i, int at, uint64_t packed = ~0ull) const {
    vi count = {};
    uint64_t nibbles = 0;
    for (int b = 0; b < PLANES; b++) {
      const uint64_t bits = packed == ~0ull ? plane[b][i] >> at : pext(plane[b][i], packed);
      if (PLANES == 4 && W == 8 && FAST_PEXT)
        nibbles |= pdep(bits, 0x11111111ull << b);  // eight counts as the nibbles of one number
      else
        count |= ((splat(int32_t(bits & ALL)) >> iota()) & 1) << b;
    }
    if (PLANES == 4 && W == 8 && FAST_PEXT) count = splat(int32_t(nibbles)) >> (4 * iota()) & 15;
    return sum / to_float(count - (count == 0));  // what nobody has stays 0
  }
};

// Thin blocks: units of at most W wanted entries, each some consecutive positions of one word. Of a model's next W
// values those that are wanted are compressed to the front, then expanded to their places among the wanted.
struct Thin {
  struct Unit {
    uint64_t wanted, range;
    int word;
  } units[UNITS];
  int n;
  alignas(64) float sums[UNITS * W];

  // False where a block makes more units than are worth it.
  bool cut(const Target& target) {
    n = 0;
    for (int i = 0; i < target.n; i++) {
      int width = 64;
      const uint64_t m = target.words[i];
      while (width > W && too_wide(m, width)) width /= 2;
      if (n + 64 / width > UNITS) return false;
      for (int at = 0; at < 64; at += width) {
        const uint64_t range = low_bits(width) << at;
        units[n++] = {m & range, range, i};
      }
    }
    return true;
  }

  static bool too_wide(uint64_t m, int width) {
    for (int at = 0; at < 64; at += width)
      if (popcount(m >> at & low_bits(width)) > W) return true;
    return false;
  }

  const float* add(const uint64_t* words, const float* p, int64_t ahead) {
    for (int k = 0; k < n; k++) {
      const Unit& unit = units[k];
      uint64_t left = words[unit.word] & unit.range;
      __builtin_prefetch(p + ahead, 0, 2);
      vf sum = load(sums + k * W);
      for (int count = popcount(left);; count -= W, p += W) {
        const uint64_t part = __builtin_expect(count > W, 0) ? pdep(ALL, left) : left;  // where the next W values are
        const vf wanted = compress(load(p), pext(unit.wanted, part));
        sum += expand(wanted, pext(part, unit.wanted));
        if (__builtin_expect(count <= W, 1)) {
          p += count;
          break;
        }
        left ^= part;
      }
      store(sums + k * W, sum);
    }
    return p;
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
  alignas(64) float spare[BLOCK * 64 + W] = {};
  for (int64_t at = lo; at < hi; at += BLOCK) {
    const Target target{mask + at, hi - at < BLOCK ? int(hi - at) : BLOCK};
    const bool few = FAST_PEXT && thin.cut(target);
    if (few)
      memset(thin.sums, 0, sizeof(float) * W * thin.n);
    else
      memset(dense.sums, 0, sizeof(float) * 64 * target.n);
    memset(&counts, 0, sizeof counts);
    for (int j = 0; j < models; j++) {
      Stream& s = streams[j];
      const uint64_t* words = s.words + at;
      const float* p = s.values;
      const int64_t left = s.end - p;
      for (int w = 0; w < BLOCK; w += 8) __builtin_prefetch(words + BLOCK + w, 0, 2);
      if (left < BLOCK * 64 + W) {  // the model's end is near: a copy may be read beyond it
        if (left) memcpy(spare, p, sizeof(float) * (left < BLOCK * 64 ? left : BLOCK * 64));
        p = spare;
      }
      counts.add(words, target.n);
      const float* next = few ? thin.add(words, p, s.ahead) : dense.add(words, target.n, p, s.ahead);
      s.values += s.ahead = next - p;
    }
    if (few) {
      for (int k = 0; k < thin.n; k++) {
        const Thin::Unit& unit = thin.units[k];
        store_until(out, counts.divide(load(thin.sums + k * W), unit.word, 0, unit.wanted), out_end);
        out += popcount(unit.wanted);
      }
    } else {
      for (int i = 0; i < target.n; i++)
        for (int k = 0; k < 64; k += W) {
          const uint32_t bits = target.words[i] >> k & ALL;
          store_until(out, compress(counts.divide(load(dense.sums + i * 64 + k), i, k), bits), out_end);
          out += popcount(bits);
        }
    }
  }
}

}  // namespace

// In the order given, whatever the number of threads.
void mean(const float* const* x, int count, float* out, int64_t n, int threads) {
  constexpr int64_t SHARE = 1 << 14;
  const vf divisor = splat(float(count));
  parallel_for((n + SHARE - 1) / SHARE, threads, [&](int64_t share) {
    const int64_t end = (share + 1) * SHARE < n ? (share + 1) * SHARE : n;
    for (int64_t i = share * SHARE; i < end; i += W) {
      vf sum = load_until(x[0] + i, x[0] + end);
      for (int j = 1; j < count; j++) sum += load_until(x[j] + i, x[j] + end);
      store_until(out + i, sum / divisor, out + end);
    }
  });
}

void masked_average(const uint64_t* mask, int64_t num_words, const Packed* models, int num_models, float* out,
                    int64_t n, int threads) {
  const int64_t chunks = threads > 1 ? (num_words + CHUNK - 1) / CHUNK : 1;
  const int64_t size = chunks > 1 ? CHUNK : num_words;
  const int64_t stride = num_models + 1;
  const Scratch<int64_t> first((chunks + 1) * stride, "the parts of an average");  // where chunk c's values start:
  memset(first, 0, (chunks + 1) * stride * sizeof(int64_t));                       // [c][mask, models]
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
    const Scratch<Stream> streams(num_models, "the models of an average");
    for (int j = 0; j < num_models; j++)
      streams[j] = {models[j].words, models[j].values + first[c * stride + 1 + j], models[j].values + models[j].nnz, 0};
    const int64_t lo = c * size, hi = lo + size < num_words ? lo + size : num_words;
    float *from = out + first[c * stride], *to = out + first[(c + 1) * stride];
    if (num_models < 16)
      average<4>(mask, lo, hi, streams, num_models, from, to);
    else
      average<MOST_PLANES>(mask, lo, hi, streams, num_models, from, to);
  });
}

}  // namespace SPARSE_ISA
