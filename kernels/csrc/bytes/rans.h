// rANS (Duda 2013): a state x in [LOW, LOW << 32) holds what was coded; a symbol of frequency f out of 2^scale turns it
// into (x / f) 2^scale + start + x % f, where start is the sum of the frequencies before. States give and take 32 bits
// at a time. LANES states take turns, because a step waits long for the step before it. The encoder runs backwards, so
// that the decoder runs forwards.
#pragma once
#include "core/simd.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers lie in messages as in memory");

namespace SPARSE_ISA {

constexpr int LANES = 4;
constexpr uint64_t LOW = 1ull << 31;

// A symbol for the encoder, with the division as a multiplication (Alverson 1991).
struct Symbol {
  uint64_t reciprocal, limit;  // limit: from there on, 32 bits leave first
  uint32_t shift, rest, bias;  // rest: 2^scale - f

  void set(uint32_t f, uint32_t start, int scale) {
    limit = (LOW >> scale << 32) * f;
    rest = (1u << scale) - f;
    if (f == 1) {  // x 2^scale + start = x + start + rest + (x - 1) rest
      reciprocal = ~0ull;
      shift = 0;
      bias = start + rest;
      return;
    }
    int bits = 0;
    while (f > 1u << bits) bits++;
    const uint64_t high = 1ull << (bits + 31), low = (high % f << 32) + f - 1;
    reciprocal = (high / f << 32) + low / f;
    shift = bits - 1;
    bias = start;
  }
};

struct Encoder {
  uint8_t *at, *begin;  // writes downwards from `at`
  uint64_t x[LANES] = {LOW, LOW, LOW, LOW};
  bool full = false;

  void put(uint64_t& state, const Symbol& s) {
    const uint32_t word = uint32_t(state);
    const bool high = state >= s.limit;
    memcpy(at - 4, &word, 4);
    at -= high ? 4 : 0;
    const uint64_t y = high ? state >> 32 : state;
    state = y + s.bias + (uint64_t((unsigned __int128)y * s.reciprocal >> 64) >> s.shift) * s.rest;
  }

  void bytes(const uint8_t* p, int64_t n, const Symbol* table) {
    int64_t i = n;
    for (; i % LANES; i--) {
      if (at - begin < 4 * LANES) return void(full = true);
      put(x[(i - 1) % LANES], table[p[i - 1]]);
    }
    uint64_t a = x[0], b = x[1], c = x[2], d = x[3];
    for (; i; i -= LANES) {
      if (at - begin < 4 * LANES) return void(full = true);
      put(d, table[p[i - 1]]);
      put(c, table[p[i - 2]]);
      put(b, table[p[i - 3]]);
      put(a, table[p[i - 4]]);
    }
    x[0] = a, x[1] = b, x[2] = c, x[3] = d;
  }

  void finish() {
    if (full || at - begin < 8 * LANES) return void(full = true);
    memcpy(at -= 8 * LANES, x, 8 * LANES);
  }
};

// Believes nothing that it reads: it stops at the end of its input.
struct Decoder {
  const uint8_t *at, *end;
  uint64_t x[LANES] = {};
  bool valid;  // until the input proves too short, or starts with what no encoder ends with

  Decoder(const uint8_t* p, int64_t n) : at(p), end(p + n), valid(n >= 8 * LANES) {
    if (!valid) return;
    memcpy(x, at, 8 * LANES);
    at += 8 * LANES;
    for (uint64_t state : x) valid = valid && state >= LOW && state < LOW << 32;
  }

  void refill(uint64_t& state) {  // four bytes are there
    uint32_t word;
    memcpy(&word, at, 4);
    const bool low = state < LOW;
    state = low ? state << 32 | word : state;
    at += low ? 4 : 0;
  }

  // n bytes, each by take(state), which moves the state on.
  template <typename Take> void bytes(uint8_t* p, int64_t n, Take take) {
    int64_t i = 0;
    uint64_t a = x[0], b = x[1], c = x[2], d = x[3];
    for (; valid && n - i >= LANES && end - at >= 4 * LANES; i += LANES) {
      p[i] = take(a);
      p[i + 1] = take(b);
      p[i + 2] = take(c);
      p[i + 3] = take(d);
      refill(a), refill(b), refill(c), refill(d);
    }
    x[0] = a, x[1] = b, x[2] = c, x[3] = d;
    for (; valid && i < n; i++) {
      uint64_t& state = x[i % LANES];
      p[i] = take(state);
      if (state >= LOW) continue;
      valid = end - at >= 4;
      if (valid) refill(state);
    }
    memset(p + i, 0, n - i);
  }

  bool finished() const { return valid && x[0] == LOW && x[1] == LOW && x[2] == LOW && x[3] == LOW; }
};

}  // namespace SPARSE_ISA
