// Masks as short as their density allows: rANS over bytes of 8 mask bits (kernels/mask_code says what is coded).
//
// All bytes with the same number k of ones are equally likely, f_k of TOTAL, so a model is nine numbers, derived from
// (ones, bits) in whole numbers: both sides get the same on any machine. The decoder writes as many bits as the mask
// has, whatever it reads, and says whether they have as many ones as announced.
#include "bytes/rans.h"
#include "core/ops.h"
#include "core/scratch.h"

namespace SPARSE_ISA {
namespace {

constexpr int SCALE = 24, COARSE = 12;
constexpr uint64_t TOTAL = 1ull << SCALE;

int64_t bytes_of(int64_t bits) { return (bits + 7) / 8; }

// Bytes in the order of the code: by number of ones, then by value.
struct Order {
  uint8_t byte[256], rank[256], ones[256];  // rank: the place among those with as many ones
  int first[10];                            // where those with k ones begin
};

constexpr Order make_order() {
  Order o{};
  int n = 0;
  for (int k = 0; k <= 8; k++) {
    o.first[k] = n;
    for (int b = 0; b < 256; b++) {
      int ones = 0;
      for (int i = 0; i < 8; i++) ones += b >> i & 1;
      if (ones != k) continue;
      o.byte[n] = b;
      o.ones[b] = k;
      o.rank[b] = n++ - o.first[k];
    }
  }
  o.first[9] = n;
  return o;
}
constexpr Order ORDER = make_order();

// f_k = max(1, p^k q^(8-k) TOTAL), p = ones / bits and its powers in 32 bits after the point, rounded down. What is
// missing to TOTAL, or too much, is made up by the likelier of the two bytes that are alone in their class.
struct Model {
  uint32_t f[9], first[10];  // first: where the slots of class k begin

  Model(int64_t ones, int64_t bits) {
    const uint64_t p = (uint64_t(ones) << 32) / bits, q = (1ull << 32) - p;
    uint64_t of_p[9] = {1ull << 32}, of_q[9] = {1ull << 32}, sum = 0;
    for (int k = 1; k <= 8; k++) {
      of_p[k] = of_p[k - 1] * p >> 32;
      of_q[k] = of_q[k - 1] * q >> 32;
    }
    for (int k = 0; k <= 8; k++) {
      const uint64_t product = of_p[k] * of_q[8 - k] >> (64 - SCALE);
      f[k] = product ? product : 1;
      sum += f[k] * uint64_t(ORDER.first[k + 1] - ORDER.first[k]);
    }
    f[p > q ? 8 : 0] += uint32_t(TOTAL - sum);
    first[0] = 0;
    for (int k = 0; k <= 8; k++) first[k + 1] = first[k] + f[k] * (ORDER.first[k + 1] - ORDER.first[k]);
  }
};

void encode(Encoder& encoder, const uint8_t* p, int64_t ones, int64_t bits) {
  if (encoder.full || ones == 0 || ones == bits) return;
  const Model model(ones, bits);
  Symbol table[256];
  for (int b = 0; b < 256; b++) {
    const int k = ORDER.ones[b];
    table[b].set(model.f[k], model.first[k] + model.f[k] * ORDER.rank[b], SCALE);
  }
  encoder.bytes(p, bytes_of(bits), table);
}

// A model for the decoder.
struct Classes {
  struct Class {
    uint64_t reciprocal;  // 2^48 / f, rounded up: exact, since what is divided and f are below 2^24
    uint32_t f, first;
    const uint8_t* byte;
  } of[9];
  uint32_t end[9];
  uint8_t coarse[1 << COARSE];  // the class of the first slot of each piece

  explicit Classes(const Model& model) {
    for (int k = 0, piece = 0; k <= 8; k++) {
      of[k] = {((1ull << 48) + model.f[k] - 1) / model.f[k], model.f[k], model.first[k], ORDER.byte + ORDER.first[k]};
      end[k] = model.first[k + 1];
      for (; uint64_t(piece) << (SCALE - COARSE) < end[k]; piece++) coarse[piece] = k;
    }
  }

  uint8_t take(uint64_t& state) const {
    const uint32_t slot = state & (TOTAL - 1);
    int k = coarse[slot >> (SCALE - COARSE)];
    while (slot >= end[k]) k++;
    const Class& c = of[k];
    const uint64_t within = slot - c.first, index = within * c.reciprocal >> 48;
    state = c.f * (state >> SCALE) + within - index * c.f;
    return c.byte[index];
  }
};

// Whether the string has that many ones, and its last byte none after the end.
bool decode(Decoder& decoder, uint8_t* p, int64_t ones, int64_t bits) {
  const int64_t n = bytes_of(bits);
  if (ones == 0 || ones == bits) {
    if (n) memset(p, ones ? 0xff : 0, n);
    if (ones && bits % 8) p[n - 1] = uint8_t(low_bits(bits % 8));
    return true;
  }
  const Classes classes{Model(ones, bits)};
  decoder.bytes(p, n, [&](uint64_t& state) { return classes.take(state); });
  int64_t found = 0, i = 0;
  for (; i + 8 <= n; i += 8) {
    uint64_t x;
    memcpy(&x, p + i, 8);
    found += popcount(x);
  }
  for (; i < n; i++) found += ORDER.ones[p[i]];
  return found == ones && !(bits % 8 && p[n - 1] >> bits % 8);
}

// Bits one after another. The buffer takes whole words.
struct BitWriter {
  uint8_t* at;
  uint64_t held = 0;
  int count = 0;

  void put(uint64_t bits, int n) {  // bits < 2^n, n <= 64
    held |= bits << count;
    if (count + n >= 64) {
      memcpy(at, &held, 8);
      at += 8;
      held = count ? bits >> (64 - count) : 0;
      count -= 64;
    }
    count += n;
  }
  void flush() { memcpy(at, &held, (count + 7) / 8); }
};

struct BitReader {
  const uint8_t* p;  // with 16 bytes to read after the last bit
  int64_t at = 0;

  uint64_t get(int n) {  // n <= 64
    uint64_t x, more;
    memcpy(&x, p + at / 8, 8);
    memcpy(&more, p + at / 8 + 8, 8);
    const int shift = at % 8;
    at += n;
    return (shift ? x >> shift | more << (64 - shift) : x) & low_bits(n);
  }
};

// One tensor of a mask.
struct Part {
  int64_t bits, words;

  Part(Segments s, int64_t l) : bits(s.dense[l + 1] - s.dense[l]), words(s.starts[l + 1] - s.starts[l]) {}
  // The bits of word i that are entries, and none of `known`.
  uint64_t others(const uint64_t* known, int64_t i) const {
    return ~known[i] & low_bits(bits - 64 * i < 64 ? bits - 64 * i : 64);
  }
};

// Memory for the two bit strings of a difference: what became of the entries of `known`, and of the others.
struct Strings {
  const Scratch<uint8_t> were, others;

  Strings(Segments s, bool wanted)
      : were(room(s, wanted), "what became of a mask's entries"),
        others(room(s, wanted), "the new entries of a mask") {}
  static int64_t room(Segments s, bool wanted) {
    int64_t most = 0;
    for (int64_t l = 0; wanted && l < s.count; l++) most = Part(s, l).words > most ? Part(s, l).words : most;
    return 8 * most + 16;
  }
};

}  // namespace

int64_t mask_encode(const uint64_t* words, const uint64_t* known, Segments s, const int64_t* dropped,
                    const int64_t* grown, uint8_t* out, int64_t capacity) {
  Encoder encoder{out + capacity, out};
  const Strings scratch(s, known);
  for (int64_t l = s.count - 1; l >= 0; l--) {
    const Part part(s, l);
    const uint64_t* w = words + s.starts[l];
    if (!known) {
      encode(encoder, reinterpret_cast<const uint8_t*>(w), grown[l], part.bits);
      continue;
    }
    const uint64_t* k = known + s.starts[l];
    BitWriter gone{scratch.were}, come{scratch.others};
    int64_t stored = 0;
    for (int64_t i = 0; i < part.words; i++) {
      const uint64_t others = part.others(k, i);
      const int count = popcount(k[i]);
      stored += count;
      gone.put(pext(~w[i], k[i]), count);
      come.put(pext(w[i], others), popcount(others));
    }
    gone.flush();
    come.flush();
    encode(encoder, scratch.others, grown[l], part.bits - stored);
    encode(encoder, scratch.were, dropped[l], stored);
  }
  encoder.finish();
  if (encoder.full) return -1;
  const int64_t size = out + capacity - encoder.at;
  memmove(out, encoder.at, size);
  return size;
}

bool mask_decode(const uint8_t* in, int64_t size, const uint64_t* known, Segments s, const int64_t* dropped,
                 const int64_t* grown, uint64_t* words) {
  Decoder decoder(in, size);
  const Strings scratch(s, known);
  for (int64_t l = 0; l < s.count; l++) {
    const Part part(s, l);
    uint64_t* w = words + s.starts[l];
    if (!known) {
      if (part.words) w[part.words - 1] = 0;
      if (!decode(decoder, reinterpret_cast<uint8_t*>(w), grown[l], part.bits)) return false;
      continue;
    }
    const uint64_t* k = known + s.starts[l];
    int64_t stored = 0;
    for (int64_t i = 0; i < part.words; i++) stored += popcount(k[i]);
    const int64_t other = part.bits - stored;
    if (!decode(decoder, scratch.were, dropped[l], stored)) return false;
    if (!decode(decoder, scratch.others, grown[l], other)) return false;
    memset(scratch.were + bytes_of(stored), 0, 16);
    memset(scratch.others + bytes_of(other), 0, 16);
    BitReader gone{scratch.were}, come{scratch.others};
    for (int64_t i = 0; i < part.words; i++) {
      const uint64_t others = part.others(k, i);
      w[i] = (k[i] & ~pdep(gone.get(popcount(k[i])), k[i])) | pdep(come.get(popcount(others)), others);
    }
  }
  return decoder.finished() && decoder.at == decoder.end;
}

}  // namespace SPARSE_ISA
