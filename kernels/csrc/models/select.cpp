// Exact selection of the k smallest or largest |x| of every segment, ties by position.
//
// |x| of floats orders like its 31 bits as an integer, the key; for the largest, keys are turned round. A histogram of
// the keys' top 11 bits finds the bin of the k-th; its keys alone are collected and the next 10 bits looked at, then
// the last 10. That gives the k-th key and how many entries equal to it are wanted. A last pass writes the bits.
#include "core/ops.h"
#include "core/parallel.h"
#include "core/scratch.h"
#include "core/simd.h"

namespace SPARSE_ISA {
namespace {

constexpr int32_t KEY = 0x7fffffff, INFINITE = 0x7f800000;
constexpr int TOP = 20, MIDDLE = 10;       // shifts of the three digits: 11, 10 and 10 bits
constexpr int BINS = 1 << 11, COPIES = 4;  // copies keep equal neighbours from waiting for one another's counter

struct Cut {
  int32_t key;   // entries with a smaller key are chosen
  int64_t ties;  // and the first `ties` of those with this key
  bool all;      // ... which is all of them
};

struct Keys {
  const float* x;
  int32_t turn;  // 0, or KEY to reverse the order
  vi at(int64_t i, int64_t n) const { return (as_int(load_until(x + i, x + n)) & KEY) ^ turn; }
  int32_t one(int64_t i) const {
    int32_t bits;
    memcpy(&bits, x + i, 4);
    return (bits & KEY) ^ turn;
  }
};

// Not thread_local: the system ends a process in which a thread's first use finds no memory.
struct Histogram {
  int64_t bins[BINS];
  uint32_t part[COPIES][BINS];
};

void top_histogram(const Keys& keys, int64_t n, Histogram& histogram) {
  auto& [bins, part] = histogram;
  memset(bins, 0, sizeof bins);
  constexpr int64_t MOST = 1 << 30;  // what 32-bit counters hold
  for (int64_t lo = 0; lo < n; lo += MOST) {
    const int64_t hi = n - lo < MOST ? n : lo + MOST;
    memset(part, 0, sizeof part);
    int64_t i = lo;
    for (; i + COPIES <= hi; i += COPIES)
      for (int c = 0; c < COPIES; c++) part[c][keys.one(i + c) >> TOP]++;
    for (; i < hi; i++) part[0][keys.one(i) >> TOP]++;
    for (int b = 0; b < BINS; b++) bins[b] += int64_t(part[0][b]) + part[1][b] + part[2][b] + part[3][b];
  }
}

// The bin of the k-th (from 0); k becomes its rank within that bin.
int find(const int64_t* bins, int64_t& k) {
  int b = 0;
  for (; k >= bins[b]; b++) k -= bins[b];
  return b;
}

// Keys whose top digit is `bin`.
int64_t collect(const Keys& keys, int64_t n, int32_t bin, int32_t* out) {
  int64_t found = 0;
  const vi wanted = splat(bin);
  int64_t i = 0;
  for (; i + W <= n; i += W) {
    const vi key = keys.at(i, n);
    uint32_t hits = any_equal(key >> TOP, wanted);
    for (; hits; hits &= hits - 1) out[found++] = keys.one(i + __builtin_ctz(hits));
  }
  for (; i < n; i++)
    if (keys.one(i) >> TOP == bin) out[found++] = keys.one(i);
  return found;
}

// Narrows `few` to the keys whose digit at `shift` holds the k-th.
int64_t narrow(int32_t* few, int64_t n, int shift, int64_t& k) {
  int64_t bins[1 << 10] = {};
  for (int64_t i = 0; i < n; i++) bins[few[i] >> shift & 1023]++;
  const int b = find(bins, k);
  int64_t kept = 0;
  for (int64_t i = 0; i < n; i++) {
    few[kept] = few[i];
    kept += (few[i] >> shift & 1023) == b;
  }
  return kept;
}

Cut find_cut(const Keys& keys, int64_t n, int64_t wanted, const int64_t* bins) {
  int64_t k = wanted - 1;
  const int bin = find(bins, k);
  const Scratch<int32_t> few(bins[bin], "the values near the border of a selection");
  int64_t left = collect(keys, n, bin, few);
  left = narrow(few, left, MIDDLE, k);
  left = narrow(few, left, 0, k);
  const Cut cut{few[0], k + 1, k + 1 == left};
  return cut;
}

// Bits of the next n <= 64 values that are chosen.
uint64_t chosen_bits(const Keys& keys, int64_t at, int n, int64_t end, Cut& cut) {
  uint64_t below = 0, equal = 0;
  const vi key = splat(cut.key);
  for (int i = 0; i < n; i += W) {
    const vi v = keys.at(at + i, end);
    below |= uint64_t(any_below(v, key)) << i;
    equal |= uint64_t(any_equal(v, key)) << i;
  }
  below &= low_bits(n);
  equal &= low_bits(n);
  if (!cut.all && equal) {
    const int here = popcount(equal);
    if (here > cut.ties) equal = pdep(low_bits(cut.ties), equal);
    cut.ties -= here < cut.ties ? here : cut.ties;
  }
  return below | equal;
}

void mark(const Keys& keys, int64_t n, const uint64_t* words, int64_t num_words, Cut cut, uint64_t* chosen) {
  int64_t at = 0;
  for (int64_t i = 0; i < num_words; i++) {
    const uint64_t m = words[i];
    if (!m) continue;
    const int here = popcount(m);
    chosen[i] = pdep(chosen_bits(keys, at, here, n, cut), m);
    at += here;
  }
}

bool any_nan(const Keys& keys, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    if ((keys.one(i) ^ keys.turn) > INFINITE) return true;
  return false;
}

// One segment; false when an entry is NaN.
bool segment(const float* x, int64_t n, const uint64_t* words, int64_t num_words, int64_t k, bool largest,
             uint64_t* chosen) {
  if (n == 0) return true;
  const Keys keys{x, largest ? KEY : 0};
  const Scratch<Histogram> memory(1, "the histogram of a selection");
  Histogram& histogram = *memory;
  top_histogram(keys, n, histogram);
  const int64_t* bins = histogram.bins;
  int64_t special = 0;  // infinite or NaN: all bits of the exponent set
  for (int b = INFINITE >> TOP; b < BINS; b++) special += bins[largest ? b ^ (KEY >> TOP) : b];
  if (special && any_nan(keys, n)) return false;
  if (k == n)
    memcpy(chosen, words, num_words * sizeof(uint64_t));
  else if (k > 0)
    mark(keys, n, words, num_words, find_cut(keys, n, k, bins), chosen);
  return true;
}

}  // namespace

bool select(const float* x, const uint64_t* words, const int64_t* offsets, Segments segments, const int64_t* k,
            bool largest, bool dense, uint64_t* chosen, int threads) {
  bool numbers = true;
  parallel_for(segments.count, threads, [&](int64_t l) {
    const int64_t first = segments.starts[l], num_words = segments.starts[l + 1] - first;
    const int64_t n = offsets[l + 1] - offsets[l];
    const auto choose = [&](const float* values) {
      if (!segment(values, n, words + first, num_words, k[l], largest, chosen + first))
        __atomic_store_n(&numbers, false, __ATOMIC_RELAXED);
    };
    if (!dense) return choose(x + offsets[l]);
    const Scratch<float> copy(n + 1, "the values to select from");
    const int64_t bounds[2] = {0, n}, words_of[2] = {0, num_words};
    const int64_t entries[2] = {0, segments.dense[l + 1] - segments.dense[l]};
    pack(x + segments.dense[l], words + first, bounds, {1, words_of, entries}, copy, 1);
    choose(copy);
  });
  return numbers;
}

// words <- kept, and the k[l] largest |scores[l]| of a dense tensor among what is not kept. A segment without scores
// (null) is left alone. False when a candidate is NaN.
bool grow(const float* const* scores, const uint64_t* kept, Segments segments, const int64_t* k, uint64_t* words,
          int threads) {
  bool numbers = true;
  parallel_for(segments.count, threads, [&](int64_t l) {
    if (!scores[l]) return;
    const int64_t first = segments.starts[l], num_words = segments.starts[l + 1] - first;
    const int64_t size = segments.dense[l + 1] - segments.dense[l];
    if (k[l] == 0) return void(memcpy(words + first, kept + first, num_words * sizeof(uint64_t)));
    const Scratch<uint64_t> others(num_words, "the entries that may grow");
    int64_t n = 0;
    for (int64_t i = 0; i < num_words; i++) {
      others[i] = ~kept[first + i] & low_bits(size - 64 * i < 64 ? size - 64 * i : 64);
      n += popcount(others[i]);
    }
    const Scratch<float> values(n + 1, "the scores of what may grow");
    const int64_t bounds[2] = {0, n}, words_of[2] = {0, num_words}, entries[2] = {0, size};
    pack(scores[l], others, bounds, {1, words_of, entries}, values, 1);
    memset(words + first, 0, num_words * sizeof(uint64_t));
    if (!segment(values, n, others, num_words, k[l], true, words + first))
      return __atomic_store_n(&numbers, false, __ATOMIC_RELAXED);
    for (int64_t i = first; i < first + num_words; i++) words[i] |= kept[i];
  });
  return numbers;
}

}  // namespace SPARSE_ISA
