// Reads the file's shards into the weights arena.
//
// The wanted ranges of all tensors become pieces of whole row groups; neighbouring pieces form batches of a few
// megabytes, sorted by shard and offset. Threads take batches in that order, read each with one large read (O_DIRECT
// where the file system allows it) into a buffer of their own, and repack its pieces. So the page cache never holds
// what the arena holds: plain reads drop their pages at once.
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "base/threads.h"
#include "model/weights.h"

namespace strata {
namespace {

constexpr int64_t kBatchBytes = int64_t{8} << 20;
constexpr int64_t kDirectAlign = 4096;  // of offsets, lengths and buffers of direct reads
constexpr int64_t kGapBytes =
    64 << 10;  // unwanted bytes between two pieces of one batch that are cheaper to read than to skip
constexpr int64_t kNoStall = int64_t{1} << 60;  // a slow disk is no lost worker

struct Piece {
  int32_t shard;
  int32_t tensor;
  int64_t mat, row_first, n_rows;
  int64_t offset, bytes;  // in the shard
};

struct Batch {
  int64_t piece_first, n_pieces;
  int32_t shard;
  int64_t offset, bytes;  // covers its pieces
};

struct Shard {
  int fd = -1;         // plain
  int direct_fd = -1;  // -1: direct reads are refused or not wanted
  int64_t bytes = 0;
};

bool piece_before(const Piece& a, const Piece& b) { return a.shard != b.shard ? a.shard < b.shard : a.offset < b.offset; }

}  // namespace

class Loader {
 public:
  Loader(Weights& weights, const strata_load_config& config, strata_load_stats& stats, Error& error)
      : weights_(weights), plan_(weights.plan_), config_(config), stats_(stats), error_(error) {}
  ~Loader() {
    for (const Shard& shard : shards_) {
      if (shard.fd >= 0) close(shard.fd);
      if (shard.direct_fd >= 0) close(shard.direct_fd);
    }
  }

  Status run() {
    const int64_t start_ns = now_ns();
    STRATA_TRY(check_config());
    STRATA_TRY(open_shards());
    STRATA_TRY(list_pieces());
    STRATA_TRY(list_batches());
    if (config_.mode == STRATA_LOAD_MAPPED) STRATA_TRY(map_shards());
    if (!weights_.arena_.open(plan_.weights_bytes)) {
      return error_.fail(STRATA_E_MEMORY, "no memory for a weights arena of %lld bytes",
                         static_cast<long long>(plan_.weights_bytes));
    }
    STRATA_TRY(read_all());
    stats_.direct_refused = refused_.load() ? 1 : 0;
    stats_.bytes_read = bytes_read_.load();
    stats_.seconds = static_cast<double>(now_ns() - start_ns) * 1e-9;
    return STRATA_OK;
  }

 private:
  bool stays_mapped(const strata_tensor& tensor) const {
    return config_.mode == STRATA_LOAD_MAPPED && tensor.role == STRATA_ROLE_EXPERT_MATRIX;
  }

  Status check_config() {
    if (config_.mode < STRATA_LOAD_DIRECT || config_.mode > STRATA_LOAD_MAPPED) {
      return error_.fail(STRATA_E_ARGUMENT, "config.mode is %d; accepted: 0 to 2", config_.mode);
    }
    if (config_.n_threads < 1 || config_.n_threads > kMaxWorkers) {
      return error_.fail(STRATA_E_ARGUMENT, "config.n_threads is %d; accepted: 1 to %d", config_.n_threads, kMaxWorkers);
    }
    if (config_.consume_file != 0 && config_.mode == STRATA_LOAD_MAPPED) {
      return error_.fail(STRATA_E_ARGUMENT, "config.consume_file is %d; a mapped file is still needed after loading",
                         config_.consume_file);
    }
    if (plan_.paths.size() == 0)
      return error_.fail(STRATA_E_STATE, "the model has no file; strata_model_reserve and fill take its place");
    return STRATA_OK;
  }

  Status open_shards() {
    if (!shards_.resize(plan_.paths.size())) return error_.fail(STRATA_E_MEMORY, "no memory for the list of shards");
    for (Shard& shard : shards_) shard = Shard{};
    for (int64_t i = 0; i < shards_.size(); ++i) {
      Shard& shard = shards_[i];
      const char* path = plan_.paths[i];
      shard.fd = open(path, (config_.consume_file != 0 ? O_RDWR : O_RDONLY) | O_CLOEXEC);
      struct stat facts;
      if (shard.fd < 0 || fstat(shard.fd, &facts) != 0) return error_.fail(STRATA_E_IO, "%s: %s", path, strerror(errno));
      if (!S_ISREG(facts.st_mode)) return error_.fail(STRATA_E_IO, "%s: not a regular file", path);
      shard.bytes = facts.st_size;
      if (config_.mode == STRATA_LOAD_BUFFERED) continue;
      shard.direct_fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
      if (shard.direct_fd < 0) refused_.store(true);
    }
    return STRATA_OK;
  }

  int64_t group_bytes(const strata_tensor& tensor) const { return tensor_row_bytes(tensor) * cpu::kGroupRows; }
  int64_t piece_rows(const strata_tensor& tensor) const {
    return std::max(kBatchBytes / group_bytes(tensor), int64_t{1}) * cpu::kGroupRows;
  }

  Status list_pieces() {
    int64_t n = 0;
    for (const strata_tensor& tensor : plan_.tensors) {
      const int64_t step = piece_rows(tensor);
      if (!stays_mapped(tensor)) n += tensor.n_mats * ((tensor.n_rows + step - 1) / step);
    }
    if (!pieces_.resize(n))
      return error_.fail(STRATA_E_MEMORY, "no memory for a list of %lld pieces", static_cast<long long>(n));
    int64_t at = 0, total = 0;
    for (int64_t t = 0; t < plan_.tensors.size(); ++t) {
      const strata_tensor& tensor = plan_.tensors[t];
      for (int64_t m = 0; m < tensor.n_mats; ++m) {
        STRATA_TRY(check_in_file(t, m));
        if (stays_mapped(tensor)) {
          stats_.mapped_bytes += tensor_file_bytes(tensor);
          continue;
        }
        stats_.arena_bytes +=
            tensor_is_vector(tensor) ? tensor.n_cols * 4 : cpu::packed_bytes(tensor.type, tensor.n_rows, tensor.n_cols);
        total += tensor_file_bytes(tensor);
        at = add_pieces(t, m, at);
      }
    }
    std::sort(pieces_.begin(), pieces_.end(), piece_before);
    weights_.done_bytes_.store(0, std::memory_order_relaxed);
    weights_.total_bytes_.store(total, std::memory_order_relaxed);
    return STRATA_OK;
  }

  void source_of(int64_t t, int64_t m, int32_t* shard, int64_t* offset) const {
    const strata_tensor& tensor = plan_.tensors[t];
    const bool listed = tensor.source_first >= 0;
    *shard = listed ? plan_.sources[tensor.source_first + m].shard : tensor.shard;
    *offset =
        listed ? plan_.sources[tensor.source_first + m].file_offset : tensor.file_offset + m * tensor.file_stride_bytes;
  }

  Status check_in_file(int64_t t, int64_t m) {
    int32_t shard;
    int64_t offset;
    source_of(t, m, &shard, &offset);
    const int64_t end = offset + tensor_file_bytes(plan_.tensors[t]);
    if (end <= shards_[shard].bytes) return STRATA_OK;
    return error_.fail(STRATA_E_IO, "%s: the file ends at %lld, tensor %lld matrix %lld lies at %lld to %lld",
                       plan_.paths[shard], static_cast<long long>(shards_[shard].bytes), static_cast<long long>(t),
                       static_cast<long long>(m), static_cast<long long>(offset), static_cast<long long>(end));
  }

  int64_t add_pieces(int64_t t, int64_t m, int64_t at) {
    const strata_tensor& tensor = plan_.tensors[t];
    const int64_t row_bytes = tensor_row_bytes(tensor), step = piece_rows(tensor);
    int32_t shard;
    int64_t offset;
    source_of(t, m, &shard, &offset);
    for (int64_t row = 0; row < tensor.n_rows; row += step) {
      const int64_t n_rows = std::min(step, tensor.n_rows - row);
      pieces_[at++] = {shard, static_cast<int32_t>(t), m, row, n_rows, offset + row * row_bytes, n_rows * row_bytes};
    }
    return at;
  }

  // Pieces that overlap in the file (two tensors of one range) always share a batch, so that consume_file may free it.
  Status list_batches() {
    if (!batches_.resize(pieces_.size())) return error_.fail(STRATA_E_MEMORY, "no memory for the list of reads");
    int64_t n = 0;
    for (int64_t i = 0; i < pieces_.size(); ++i) {
      const Piece& piece = pieces_[i];
      const int64_t end = piece.offset + piece.bytes;
      if (n > 0) {
        Batch& last = batches_[n - 1];
        const int64_t last_end = last.offset + last.bytes;
        const bool near = piece.shard == last.shard && piece.offset <= last_end + kGapBytes;
        if (near && (piece.offset < last_end || end - last.offset <= kBatchBytes)) {
          last.bytes = std::max(last_end, end) - last.offset;
          ++last.n_pieces;
          largest_ = std::max(largest_, last.bytes);
          continue;
        }
      }
      batches_[n++] = {i, 1, piece.shard, piece.offset, piece.bytes};
      largest_ = std::max(largest_, piece.bytes);
    }
    n_batches_ = n;
    return STRATA_OK;
  }

  Status map_shards() {
    Array<Mapping>& mappings = weights_.mappings_;
    if (!mappings.resize(shards_.size())) return error_.fail(STRATA_E_MEMORY, "no memory for the list of maps");
    for (int64_t i = 0; i < shards_.size(); ++i) {
      if (shards_[i].bytes == 0) continue;
      void* p = mmap(nullptr, static_cast<size_t>(shards_[i].bytes), PROT_READ, MAP_SHARED, shards_[i].fd, 0);
      if (p == MAP_FAILED) return error_.fail(STRATA_E_MEMORY, "%s: cannot be mapped: %s", plan_.paths[i], strerror(errno));
      mappings[i] = {static_cast<const uint8_t*>(p), shards_[i].bytes};
    }
    return STRATA_OK;
  }

  Status read_all() {
    Pool pool;
    Pool::Config config;
    config.n_workers = static_cast<int32_t>(std::min<int64_t>(config_.n_threads, std::max<int64_t>(n_batches_, 1)));
    config.spin_us = 0;
    config.stall_ns = kNoStall;
    STRATA_TRY(pool.open(config, error_));
    STRATA_TRY(pool.parallel([&](int32_t) { read_batches(pool); }));
    return error_.status;
  }

  void read_batches(Pool& pool) {
    Arena buffer;
    if (!buffer.open(largest_ + 2 * kDirectAlign)) {
      fail(STRATA_E_MEMORY, "no memory for a read buffer of %lld bytes", largest_);
      return;
    }
    int64_t begin, end;
    while (!failed_.load(std::memory_order_relaxed) && pool.take(0, n_batches_, 1, &begin, &end)) {
      if (weights_.cancelled_.load(std::memory_order_relaxed)) {
        fail(STRATA_E_CANCELLED, "loading was cancelled after %lld bytes", weights_.done_bytes_.load());
        return;
      }
      const Batch& batch = batches_[begin];
      const uint8_t* bytes = read_batch(batch, buffer.data());
      if (bytes == nullptr) return;
      for (int64_t i = batch.piece_first; i < batch.piece_first + batch.n_pieces; ++i) {
        const Piece& piece = pieces_[i];
        weights_.place(plan_.tensors[piece.tensor], piece.mat, piece.row_first, piece.n_rows,
                       bytes + (piece.offset - batch.offset));
        weights_.done_bytes_.fetch_add(piece.bytes, std::memory_order_relaxed);
      }
      if (config_.consume_file != 0 && !consume(batch)) return;
    }
  }

  // The batch's bytes inside the buffer, or null after a failure.
  const uint8_t* read_batch(const Batch& batch, uint8_t* buffer) {
    const Shard& shard = shards_[batch.shard];
    if (shard.direct_fd >= 0) {
      const int64_t first = batch.offset / kDirectAlign * kDirectAlign;
      const int64_t wanted = batch.offset + batch.bytes - first;
      const int64_t got =
          read_range(shard.direct_fd, buffer, first, (wanted + kDirectAlign - 1) / kDirectAlign * kDirectAlign, wanted);
      if (got >= wanted) {
        bytes_read_.fetch_add(got, std::memory_order_relaxed);
        return buffer + (batch.offset - first);
      }
      if (errno != EINVAL) return short_read(batch, first, got);
      refused_.store(true, std::memory_order_relaxed);  // the file opened for direct reads and then refused one
    }
    const int64_t got = read_range(shard.fd, buffer, batch.offset, batch.bytes, batch.bytes);
    if (got < batch.bytes) return short_read(batch, batch.offset, got);
    bytes_read_.fetch_add(got, std::memory_order_relaxed);
    posix_fadvise(shard.fd, batch.offset, batch.bytes, POSIX_FADV_DONTNEED);
    return buffer;
  }

  // Reads until `enough` bytes are there, or less at the end of the file (errno 0) or at an error.
  static int64_t read_range(int fd, uint8_t* to, int64_t offset, int64_t bytes, int64_t enough) {
    int64_t got = 0;
    while (got < enough && got < bytes) {
      errno = 0;
      const ssize_t n = pread(fd, to + got, static_cast<size_t>(bytes - got), offset + got);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) break;
      got += n;
      if (got < enough && got % kDirectAlign != 0 && bytes % kDirectAlign == 0) got = got / kDirectAlign * kDirectAlign;
    }
    return got;
  }

  const uint8_t* short_read(const Batch& batch, int64_t first, int64_t got) {
    const char* why = errno == 0 ? "the file ends early" : strerror(errno);
    char text[512];
    snprintf(text, sizeof text, "%.380s: reading at offset %lld failed: %.80s", plan_.paths[batch.shard],
             static_cast<long long>(first + got), why);
    fail_text(STRATA_E_IO, text);
    return nullptr;
  }

  // Frees the file's blocks under the batch's pieces.
  bool consume(const Batch& batch) {
    for (int64_t i = batch.piece_first; i < batch.piece_first + batch.n_pieces; ++i) {
      const Piece& piece = pieces_[i];
      if (fallocate(shards_[piece.shard].fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, piece.offset, piece.bytes) == 0)
        continue;
      char text[512];
      snprintf(text, sizeof text, "%.380s: consume_file cannot free pieces of this file: %.80s", plan_.paths[piece.shard],
               strerror(errno));
      fail_text(STRATA_E_UNSUPPORTED, text);
      return false;
    }
    return true;
  }

  void fail(Status status, const char* format, int64_t value) {
    char text[256];
    snprintf(text, sizeof text, format, static_cast<long long>(value));
    fail_text(status, text);
  }
  void fail_text(Status status, const char* text) {
    pthread_mutex_lock(&mutex_);
    error_.fail(status, "%s", text);
    pthread_mutex_unlock(&mutex_);
    failed_.store(true, std::memory_order_relaxed);
  }

  Weights& weights_;
  const Plan& plan_;
  const strata_load_config& config_;
  strata_load_stats& stats_;
  Error& error_;
  Array<Shard> shards_;
  Array<Piece> pieces_;
  Array<Batch> batches_;
  int64_t n_batches_ = 0;
  int64_t largest_ = 0;
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
  std::atomic<bool> failed_{false}, refused_{false};
  std::atomic<int64_t> bytes_read_{0};
};

Status Weights::load(const strata_load_config& config, strata_load_stats& stats, Error& error) {
  if (ready()) return error.fail(STRATA_E_STATE, "the model's weights are loaded already");
  const Status status = Loader(*this, config, stats, error).run();
  if (status != STRATA_OK) {
    arena_.close();
    for (const Mapping& mapping : mappings_) {
      if (mapping.data != nullptr) munmap(const_cast<uint8_t*>(mapping.data), static_cast<size_t>(mapping.bytes));
    }
    mappings_.resize(0);
    return status;
  }
  ready_.store(true, std::memory_order_release);
  return STRATA_OK;
}

}  // namespace strata
