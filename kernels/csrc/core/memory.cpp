#include "core/memory.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

#include <map>
#include <mutex>
#include <new>
#include <set>

namespace sparsefl {
namespace {

constexpr int64_t LINE = 64, PAGE = 4096, HUGE = 2 << 20, SEGMENT = 256 << 20, MOST = int64_t(1) << 56;
constexpr int64_t LEAST = 256 << 10;  // bytes of a stack's block

// Has its text in itself: there may be no memory for a string.
class OutOfMemory : public std::bad_alloc {
 public:
  OutOfMemory(int64_t count, int64_t size, const char* what) {
    int64_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
      snprintf(text_, sizeof text_, "expected memory for %s, got a size beyond all machines", what);
    else
      snprintf(text_, sizeof text_, "expected %lld bytes of memory for %s, got none", (long long)bytes, what);
  }
  const char* what() const noexcept override { return text_; }

 private:
  char text_[200];
};

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

// A node of a tree, to be put in later: what may find no memory happens before the first change of the trees.
template <typename Tree> typename Tree::node_type new_node() {
  Tree one;
  one.emplace();
  return one.extract(one.begin());
}

// Segments of address space, cut into buffers from their beginning on. A buffer that comes back joins its idle
// neighbours, so that buffers of any later size fit into what is there: the smallest idle piece that is large enough
// gives one, and only if there is none does a segment go on into fresh pages.
class Pool {
 public:
  // nullptr, or a std::bad_alloc: no memory. Either leaves everything as it was.
  void* take(int64_t bytes) {
    if (bytes > MOST) return nullptr;
    const int64_t size = bytes < 1 ? LINE : whole(bytes, bytes < PAGE ? LINE : PAGE);
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = idle_.lower_bound({size, nullptr});
    const Place piece = found != idle_.end() ? blocks_.find(found->second) : fresh(size);
    if (piece == blocks_.end()) return nullptr;
    Block& block = piece->second;
    if (block.size > size) {
      Blocks::node_type rest = new_block(block.size - size, block.segment);
      use(piece);
      block.size = size;
      keep(put(std::move(rest), piece->first + size));
    } else {
      use(piece);
    }
    taken_ += size;
    return piece->first;
  }

  void give(void* p) noexcept {
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
  using Idle = std::set<std::pair<int64_t, char*>>;
  struct Block {
    int64_t size = 0;
    char* segment = nullptr;
    bool idle = false;
    Idle::node_type spare;  // while in use: its node of idle_, so that giving back needs no memory
  };
  struct Segment {
    int64_t size = 0, used = 0;  // from its beginning
  };
  using Blocks = std::map<char*, Block>;
  using Segments = std::map<char*, Segment>;
  using Place = Blocks::iterator;

  static Blocks::node_type new_block(int64_t size, char* segment) {
    Blocks::node_type made = new_node<Blocks>();
    made.mapped() = {size, segment, false, new_node<Idle>()};
    return made;
  }

  Place put(Blocks::node_type block, char* at) noexcept {
    block.key() = at;
    return blocks_.insert(std::move(block)).position;
  }

  void keep(Place place) noexcept {
    Block& block = place->second;
    block.idle = true;
    block.spare.value() = {block.size, place->first};
    idle_.insert(std::move(block.spare));
    kept_ += block.size;
  }

  void use(Place place) noexcept {
    Block& block = place->second;
    block.idle = false;
    block.spare = idle_.extract({block.size, place->first});
    kept_ -= block.size;
  }

  // The idle piece that a block in use becomes, with its neighbours.
  Place joined(Place block) noexcept {
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

  void drop_idle_segments() noexcept {
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
    Blocks::node_type block = new_block(size, nullptr);
    for (auto& [start, segment] : segments_) {
      const Block& last = std::prev(blocks_.lower_bound(start + segment.used))->second;
      const int64_t lacks = size - (last.idle ? last.size : 0);
      if (segment.used + lacks <= segment.size) return extend(start, segment, lacks, std::move(block));
    }
    Segments::node_type made = new_node<Segments>();
    drop_idle_segments();
    for (const int64_t all : {size < SEGMENT ? SEGMENT : whole(size, HUGE), whole(size, HUGE)})
      if (char* start = map_segment(all)) {
        made.key() = start, made.mapped() = {all, 0};
        return extend(start, segments_.insert(std::move(made)).position->second, size, std::move(block));
      }
    return blocks_.end();
  }

  Place extend(char* start, Segment& segment, int64_t size, Blocks::node_type block) noexcept {
    block.mapped().size = size, block.mapped().segment = start;
    const Place place = put(std::move(block), start + segment.used);
    segment.used += size;
    return joined(place);
  }

  std::mutex mutex_;
  Blocks blocks_;
  Segments segments_;
  Idle idle_;
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
void* take(int64_t bytes) noexcept {
  void* p = nullptr;
  return posix_memalign(&p, LINE, bytes < 1 ? 1 : bytes) ? nullptr : p;
}
void give(void* p) noexcept { free(p); }
#else
bool pooled() { return true; }
void* take(int64_t bytes) noexcept {
  try {
    return pool().take(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void give(void* p) noexcept { pool().give(p); }
#endif
void* want(int64_t count, int64_t size, const char* what) {
  int64_t bytes;
  if (!__builtin_mul_overflow(count, size, &bytes))
    if (void* p = take(bytes)) return p;
  throw OutOfMemory(count, size, what);
}

#if defined(__SANITIZE_ADDRESS__)
Stack::~Stack() = default;
void* Stack::want(int64_t count, int64_t size, const char* what) { return sparsefl::want(count, size, what); }
void Stack::give(void* p) noexcept { sparsefl::give(p); }
#else
Stack::~Stack() {
  for (const Block& block : blocks_)
    if (block.first) sparsefl::give(block.first);
}

void* Stack::want(int64_t count, int64_t size, const char* what) {
  int64_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes) || bytes > MOST) throw OutOfMemory(count, size, what);
  bytes = whole(bytes < 1 ? 1 : bytes, LINE);
  if (blocks_.empty()) blocks_.push_back({});
  if (blocks_[top_].used && blocks_[top_].room() < bytes) {
    if (top_ + 1 == blocks_.size()) blocks_.push_back({});
    top_++;
  }
  Block& block = blocks_[top_];
  if (block.room() < bytes) {  // nothing of it is in use
    if (block.first) sparsefl::give(block.first);
    block = {};
    const int64_t all = bytes < LEAST ? LEAST : bytes;
    block.first = static_cast<char*>(sparsefl::want(all, 1, what));
    block.size = all;
  }
  void* p = block.first + block.used;
  block.used += bytes;
  return p;
}

void Stack::give(void* p) noexcept {
  while (!blocks_[top_].used) top_--;  // there was no memory for the block above
  blocks_[top_].used = static_cast<char*>(p) - blocks_[top_].first;
  while (top_ && !blocks_[top_].used) top_--;
}
#endif

namespace {
thread_local Stack* stack_of_thread = nullptr;
}
OnStack::OnStack(Stack& stack) : before_(stack_of_thread) { stack_of_thread = &stack; }
OnStack::~OnStack() { stack_of_thread = before_; }
Stack* OnStack::current() { return stack_of_thread; }

int64_t bytes_taken() { return pool().taken(); }
int64_t bytes_idle() { return pool().idle(); }
void trim() { pool().trim(); }

}  // namespace sparsefl
