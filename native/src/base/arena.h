// Memory of one owner: anonymous maps with huge pages where they help, and arrays that never throw.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace strata {

// Rounds up; -1 when the result does not fit (bytes is not negative).
inline int64_t round_up(int64_t bytes, int64_t multiple) {
  int64_t sum;
  if (__builtin_add_overflow(bytes, multiple - 1, &sum)) return -1;
  return sum / multiple * multiple;
}

// One private anonymous mapping, zero on first touch, page aligned.
class Arena {
 public:
  Arena() = default;
  ~Arena() { close(); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // False: no memory. Zero bytes is a valid, empty arena.
  bool open(int64_t bytes) {
    close();
    if (bytes < 0) return false;
    if (bytes == 0) return true;
    const int64_t mapped = round_up(bytes, kHugePage);
    if (mapped < 0) return false;
    void* p = mmap(nullptr, static_cast<size_t>(mapped), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED) return false;
    data_ = static_cast<uint8_t*>(p);
    mapped_ = mapped;
    bytes_ = bytes;
    if (bytes >= kHugePage) madvise(p, static_cast<size_t>(mapped), MADV_HUGEPAGE);  // advice: refusal changes speed only
    return true;
  }
  void close() {
    if (data_ != nullptr) munmap(data_, static_cast<size_t>(mapped_));
    data_ = nullptr;
    mapped_ = bytes_ = 0;
  }
  uint8_t* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  static constexpr int64_t kHugePage = int64_t{2} << 20;
  uint8_t* data_ = nullptr;
  int64_t mapped_ = 0;
  int64_t bytes_ = 0;
};

// A fixed-size array of plain structs on the heap; allocation may fail and says so.
template <class T>
class Array {
 public:
  Array() = default;
  ~Array() { free(data_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  Array(Array&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

  // Zeroed elements; false when there is no memory.
  bool resize(int64_t n) {
    free(data_);
    data_ = nullptr;
    size_ = 0;
    if (n < 0) return false;
    if (n == 0) return true;
    data_ = static_cast<T*>(calloc(static_cast<size_t>(n), sizeof(T)));
    if (data_ == nullptr) return false;
    size_ = n;
    return true;
  }
  bool copy(const T* from, int64_t n) {
    if (!resize(n)) return false;
    if (n > 0) memcpy(static_cast<void*>(data_), from, static_cast<size_t>(n) * sizeof(T));
    return true;
  }
  int64_t size() const { return size_; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](int64_t i) { return data_[i]; }
  const T& operator[](int64_t i) const { return data_[i]; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }

 private:
  T* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace strata
