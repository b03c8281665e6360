#include "memory.h"

#include <pthread.h>
#include <stdlib.h>
#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

#include <map>
#include <mutex>
#include <set>

namespace sparsefl {
namespace {

constexpr int64_t LINE = 64, PAGE = 4096, HUGE = 2 << 20, SEGMENT = 256 << 20;

int64_t whole(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

#if defined(__linux__)
// Huge pages where the system has them. Memory is used only where it is touched.
char* map_segment(int64_t size) {
  char* all = static_cast<char*>(
      mmap(nullptr, size + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (all == MAP_FAILED) return nullptr;
  const int64_t before = (HUGE - reinterpret_cast<uintptr_t>(all) % HUGE) % HUGE;
  if (before) munmap(all, before);
  munmap(all + before + size, HUGE - before);
#if defined(MADV_HUGEPAGE)
  madvise(all + before, size, MADV_HUGEPAGE);  // a wish: without it the buffers are only slower
#endif
  return all + before;
}
void unmap_segment(char* p, int64_t size) { munmap(p, size); }
// Gives back the whole pages between p and end.
void forget(char* p, char* end) {
  const uintptr_t page = sysconf(_SC_PAGESIZE);
  p += (page - reinterpret_cast<uintptr_t>(p) % page) % page;
  end -= reinterpret_cast<uintptr_t>(end) % page;
  if (p < end) madvise(p, end - p, MADV_DONTNEED);
}
#else
char* map_segment(int64_t size) { return static_cast<char*>(aligned_alloc(PAGE, size)); }
void unmap_segment(char* p, int64_t) { free(p); }
void forget(char*, char*) {}
#endif

// Segments of address space, cut into buffers from their beginning on. A buffer that comes back joins its idle
// neighbours, so that buffers of any later size fit into what is there: the smallest idle piece that is large enough
// gives one, and only if there is none does a segment go on into fresh pages.
class Pool {
 public:
  void* take(int64_t bytes) {
    const int64_t size = bytes < 1 ? LINE : whole(bytes, bytes < PAGE ? LINE : PAGE);
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = idle_.lower_bound({size, nullptr});
    const Place piece = found != idle_.end() ? blocks_.find(found->second) : fresh(size);
    if (piece == blocks_.end()) return nullptr;
    use(piece);
    Block& block = piece->second;
    if (block.size > size) {
      const Place rest = blocks_.emplace(piece->first + size, Block{block.size - size, block.segment, false}).first;
      block.size = size;
      keep(rest);
    }
    taken_ += size;
    return piece->first;
  }

  void give(void* p) {
    std::lock_guard<std::mutex> lock(mutex_);
    const Place block = blocks_.find(static_cast<char*>(p));
    taken_ -= block->second.size;
    joined(block);
  }

  void trim() {
    std::lock_guard<std::mutex> lock(mutex_);
    drop_idle_segments();
    for (const auto& [size, p] : idle_) forget(p, p + size);
  }

  int64_t taken() { return std::lock_guard<std::mutex>(mutex_), taken_; }
  int64_t idle() { return std::lock_guard<std::mutex>(mutex_), kept_; }
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  struct Block {
    int64_t size;
    char* segment;
    bool idle;
  };
  struct Segment {
    int64_t size, used;  // from its beginning
  };
  using Place = std::map<char*, Block>::iterator;

  void keep(Place block) {
    block->second.idle = true;
    idle_.emplace(block->second.size, block->first);
    kept_ += block->second.size;
  }

  void use(Place block) {
    block->second.idle = false;
    idle_.erase({block->second.size, block->first});
    kept_ -= block->second.size;
  }

  // The idle piece that a block in use becomes, with its neighbours.
  Place joined(Place block) {
    const Place next = std::next(block);
    if (next != blocks_.end() && next->second.idle && next->second.segment == block->second.segment) {
      use(next);
      block->second.size += next->second.size;
      blocks_.erase(next);
    }
    if (block->first != block->second.segment) {
      const Place before = std::prev(block);
      if (before->second.idle) {
        use(before);
        before->second.size += block->second.size;
        blocks_.erase(block);
        block = before;
      }
    }
    keep(block);
    return block;
  }

  void drop_idle_segments() {
    for (auto s = segments_.begin(); s != segments_.end();) {
      const Place first = blocks_.find(s->first);
      if (first->second.idle && first->second.size == s->second.used) {
        use(first);
        blocks_.erase(first);
        unmap_segment(s->first, s->second.size);
        s = segments_.erase(s);
      } else {
        s++;
      }
    }
  }

  // An idle piece of at least this size at the end of a segment. A new one takes the place of those that are idle.
  Place fresh(int64_t size) {
    for (auto& [start, segment] : segments_) {
      const Block& last = std::prev(blocks_.lower_bound(start + segment.used))->second;
      const int64_t lacks = size - (last.idle ? last.size : 0);
      if (segment.used + lacks <= segment.size) return extend(start, segment, lacks);
    }
    drop_idle_segments();
    for (const int64_t all : {size < SEGMENT ? SEGMENT : whole(size, HUGE), whole(size, HUGE)})
      if (char* start = map_segment(all)) return extend(start, segments_[start] = {all, 0}, size);
    return blocks_.end();
  }

  Place extend(char* start, Segment& segment, int64_t size) {
    const Place block = blocks_.emplace(start + segment.used, Block{size, start, false}).first;
    segment.used += size;
    return joined(block);
  }

  std::mutex mutex_;
  std::map<char*, Block> blocks_;
  std::map<char*, Segment> segments_;
  std::set<std::pair<int64_t, char*>> idle_;
  int64_t taken_ = 0, kept_ = 0;
};

Pool& pool() {
  static Pool* const all = [] {
    Pool* p = new Pool;  // never destroyed: tensors may outlive this module's static objects
    pthread_atfork([] { pool().lock(); }, [] { pool().unlock(); }, [] { pool().unlock(); });
    return p;
  }();
  return *all;
}

}  // namespace

#if defined(__SANITIZE_ADDRESS__)
// The sanitizer must see where every buffer ends, and that nobody uses it afterwards.
bool pooled() { return false; }
void* take(int64_t bytes) {
  void* p = nullptr;
  return posix_memalign(&p, LINE, bytes) ? nullptr : p;
}
void give(void* p) { free(p); }
#else
bool pooled() { return true; }
void* take(int64_t bytes) { return pool().take(bytes); }
void give(void* p) { pool().give(p); }
#endif
int64_t bytes_taken() { return pool().taken(); }
int64_t bytes_idle() { return pool().idle(); }
void trim() { pool().trim(); }

}  // namespace sparsefl
