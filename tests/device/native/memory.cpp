#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <utility>

#include "settings.h"

namespace device {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kPinnedAlignment = 64;
constexpr int kPoison = 0x7f;  // as a float 3.4e38, as an integer large: neither looks like a weight

struct Block {
  char* shown;
  char* reached;
  size_t bytes;
  StreamId owner;
  std::set<StreamId> users;  // other streams, by record_stream
};

struct Memory {
  std::mutex mutex;
  std::map<const char*, Block*> blocks;  // by the shown address; a block stays mapped for good
  std::multimap<std::pair<size_t, StreamId>, Block*> free;
  std::map<const char*, size_t> pinned;
};

Memory& memory() {
  static Memory* memory = new Memory;  // never destroyed: tensors may be freed while the process exits
  return *memory;
}

// Returns the entry whose address and size hold an address, or the end.
template <class Map, class Size>
auto holding(Map& map, const void* address, Size size) {
  auto next = map.upper_bound(static_cast<const char*>(address));
  if (next == map.begin()) return map.end();
  auto entry = std::prev(next);
  bool is_inside = static_cast<const char*>(address) < entry->first + size(entry->second);
  return is_inside ? entry : map.end();
}

Block* block_of(const void* shown) {
  auto& all = memory();
  std::lock_guard lock(all.mutex);
  auto entry = holding(all.blocks, shown, [](const Block* block) { return block->bytes; });
  return entry == all.blocks.end() ? nullptr : entry->second;
}

Block* map_block(size_t bytes, StreamId owner) {
  int file = memfd_create("simulated device", 0);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) throw std::runtime_error("the device has no memory file");
  void* shown = mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, file, 0);
  void* reached = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (shown == MAP_FAILED || reached == MAP_FAILED) throw std::runtime_error("the device cannot map its memory");
  return new Block{static_cast<char*>(shown), static_cast<char*>(reached), bytes, owner, {}};
}

void give_back(Block* block) {
  stream(block->owner).push([block] { std::memset(block->reached, kPoison, block->bytes); });
  counters.device -= static_cast<int64_t>(block->bytes);
  auto& all = memory();
  std::lock_guard lock(all.mutex);
  block->users.clear();
  all.free.emplace(std::pair(block->bytes, block->owner), block);
}

}  // namespace

void* allocate(size_t bytes) {
  bytes = (bytes + kPage - 1) / kPage * kPage;
  auto size = static_cast<int64_t>(bytes);
  if (!hold(counters.device, counters.device_peak, size, settings.device_limit)) return nullptr;
  auto& all = memory();
  std::lock_guard lock(all.mutex);
  if (auto entry = all.free.find({bytes, current_stream()}); entry != all.free.end()) {
    Block* block = entry->second;
    all.free.erase(entry);
    return block->shown;
  }
  Block* block = map_block(bytes, current_stream());
  all.blocks[block->shown] = block;
  return block->shown;
}

void release(void* shown) {
  Block* block = block_of(shown);
  if (!block) return;
  // A copy: the last task gives the block back, perhaps while this loop runs.
  const std::set<StreamId> users = block->users;
  if (users.empty()) return give_back(block);
  auto left = std::make_shared<std::atomic<size_t>>(users.size());
  for (StreamId user : users) {
    stream(user).push([block, left] {
      if (--*left == 0) give_back(block);
    });
  }
}

void record_stream(const void* shown, StreamId id) {
  Block* block = block_of(shown);
  if (!block || block->owner == id) return;
  std::lock_guard lock(memory().mutex);
  block->users.insert(id);
}

char* reachable(const void* shown) {
  Block* block = block_of(shown);
  return block ? block->reached + (static_cast<const char*>(shown) - block->shown) : nullptr;
}

StreamId owner(const void* shown) {
  Block* block = block_of(shown);
  return block ? block->owner : current_stream();
}

void* allocate_pinned(size_t bytes) {
  auto size = static_cast<int64_t>(bytes);
  if (!hold(counters.pinned, counters.pinned_peak, size, settings.pinned_limit)) return nullptr;
  void* address = std::aligned_alloc(kPinnedAlignment, (bytes + kPinnedAlignment - 1) / kPinnedAlignment * kPinnedAlignment);
  auto& all = memory();
  std::lock_guard lock(all.mutex);
  all.pinned[static_cast<const char*>(address)] = bytes;
  return address;
}

void release_pinned(void* address) {
  auto& all = memory();
  std::lock_guard lock(all.mutex);
  auto entry = all.pinned.find(static_cast<const char*>(address));
  if (entry == all.pinned.end()) return;
  counters.pinned -= static_cast<int64_t>(entry->second);
  all.pinned.erase(entry);
  std::free(address);
}

bool is_pinned(const void* address) {
  auto& all = memory();
  std::lock_guard lock(all.mutex);
  return holding(all.pinned, address, [](size_t bytes) { return bytes; }) != all.pinned.end();
}

}  // namespace device
