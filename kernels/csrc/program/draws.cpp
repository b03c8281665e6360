#include "program/draws.h"

#include <utility>

namespace sparsefl::program {

void Stream::refill() {
  for (uint64_t& word : counter_)
    if (++word) break;
  uint64_t c[4] = {counter_[0], counter_[1], counter_[2], counter_[3]};
  uint64_t low = key_.low, high = key_.high;
  for (int round = 0; round < 10; round++) {
    const unsigned __int128 a = (unsigned __int128)0xD2E7470EE14C6C93ull * c[0];
    const unsigned __int128 b = (unsigned __int128)0xCA5A826395121157ull * c[2];
    c[0] = uint64_t(b >> 64) ^ c[1] ^ low, c[1] = uint64_t(b);
    c[2] = uint64_t(a >> 64) ^ c[3] ^ high, c[3] = uint64_t(a);
    low += 0x9E3779B97F4A7C15ull, high += 0xBB67AE8584CAA73Bull;
  }
  for (int i = 0; i < 4; i++) block_[i] = c[i];
  used_ = 0;
}

uint64_t Stream::next() {
  if (used_ == 4) refill();
  return block_[used_++];
}

uint32_t Stream::half() {
  has_half_ = !has_half_;
  if (!has_half_) return half_;
  const uint64_t both = next();
  half_ = uint32_t(both >> 32);
  return uint32_t(both);
}

uint32_t Stream::up_to(uint32_t most) {  // the upper half of a product, some lower halves refused
  if (!most) return 0;
  const uint32_t count = most + 1;
  if (!count) return half();
  uint64_t product = uint64_t(half()) * count;
  if (uint32_t(product) < count) {
    const uint32_t least = (UINT32_MAX - most) % count;
    while (uint32_t(product) < least) product = uint64_t(half()) * count;
  }
  return uint32_t(product >> 32);
}

uint32_t Stream::place_up_to(uint32_t most) {
  if (!most) return 0;
  const uint32_t mask = UINT32_MAX >> __builtin_clz(most);
  for (;;) {
    const uint32_t place = half() & mask;
    if (place <= most) return place;
  }
}

void Drawn::draw(Stream stream, const void* samples, bool wide, int64_t count, int64_t epochs, uint32_t corners) {
  const int64_t all = epochs * count;
  order.resize(all), rows.resize(all), columns.resize(all), mirrored.resize(all);
  for (int64_t first = 0; first < all; first += count) {
    int64_t* now = order.data() + first;
    for (int64_t i = 0; i < count; i++)
      now[i] = wide ? static_cast<const int64_t*>(samples)[i] : static_cast<const int32_t*>(samples)[i];
    for (int64_t i = count - 1; i > 0; i--) std::swap(now[i], now[stream.place_up_to(uint32_t(i))]);
    for (int64_t i = 0; i < count; i++) rows[first + i] = stream.up_to(corners);
    for (int64_t i = 0; i < count; i++) columns[first + i] = stream.up_to(corners);
    for (int64_t i = 0; i < count; i++) mirrored[first + i] = stream.uniform() < 0.5;
  }
}

}  // namespace sparsefl::program
