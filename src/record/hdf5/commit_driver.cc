// The driver's callbacks are HDF5's virtual file layer (HDF5 1.10 "Virtual File Layer" notes): C
// functions on a struct that starts with H5FD_t. The held-back metadata is a map of disjoint
// pieces.
#include "src/record/hdf5/commit_driver.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

constexpr haddr_t kPage = 4096;
constexpr haddr_t kReserveAhead = 1 << 20;         // fewer calls; given back on close
constexpr haddr_t kMaxAddress = haddr_t(1) << 62;  // fits off_t

WriteFault fault = WriteFault::kNone;
int64_t fault_after = 0, writes = 0;
bool is_rehearsal = false;

// True if this write or reservation must fail with ENOSPC; does not return if it must kill.
bool strike(int fd, const char* data, size_t size, haddr_t address) {
  const int64_t index = writes++;
  if (fault == WriteFault::kNone || index < fault_after) return false;
  if (fault == WriteFault::kFull) return true;
  if (fault == WriteFault::kTear && data != nullptr) {
    const size_t first = static_cast<size_t>(std::min<haddr_t>(size, kPage - address % kPage));
    (void)!::pwrite(fd, data, first, static_cast<off_t>(address));
  }
  ::kill(::getpid(), SIGKILL);
  return true;
}

}  // namespace

class CommitFile {
 public:
  H5FD_t base;  // first, as HDF5 requires: it passes H5FD_t*

  CommitFile(int fd, haddr_t size, bool writable)
      : base(), fd_(fd), writable_(writable), eof_(size), committed_(size), reserved_(size) {}
  ~CommitFile() {
    // Reserved space beyond the last commit holds nothing.
    if (writable_ && error_ == 0 && !is_rehearsal)
      (void)!::ftruncate(fd_, static_cast<off_t>(committed_));
    ::close(fd_);
  }
  static CommitFile& of(H5FD_t* file) { return *reinterpret_cast<CommitFile*>(file); }
  static const CommitFile& of(const H5FD_t* file) {
    return *reinterpret_cast<const CommitFile*>(file);
  }

  int fd() const { return fd_; }
  int error() const { return error_; }
  haddr_t eoa() const { return eoa_; }
  void set_eoa(haddr_t address) { eoa_ = address; }
  haddr_t eof() const { return eof_; }
  void truncate() { eof_ = eoa_; }

  bool read(haddr_t address, size_t size, char* out, bool metadata);
  void hold(haddr_t address, size_t size, const char* data);
  void write_raw(haddr_t address, size_t size, const char* data);
  bool commit();

 private:
  using Pieces = std::map<haddr_t, std::vector<char>>;
  void forget(haddr_t begin, haddr_t end);  // cuts [begin, end) out of the held-back pieces
  bool reserve(haddr_t end);
  bool put(haddr_t address, const char* data, size_t size);

  int fd_;
  bool writable_;
  haddr_t eoa_ = 0, eof_ = 0;
  haddr_t committed_;  // the end that the committed superblock states
  haddr_t reserved_;   // the blocks of [0, reserved_) are allocated
  int error_ = 0;
  Pieces held_;
  std::set<haddr_t> on_disk_;  // metadata known to be in the committed file
};

bool CommitFile::read(haddr_t address, size_t size, char* out, bool metadata) {
  size_t done = 0;
  while (done < size) {
    const ssize_t n = ::pread(fd_, out + done, size - done, static_cast<off_t>(address + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  std::memset(out + done, 0, size - done);
  if (metadata && !held_.contains(address)) on_disk_.insert(address);
  const haddr_t end = address + size;
  auto piece = held_.upper_bound(address);
  if (piece != held_.begin()) --piece;
  for (; piece != held_.end() && piece->first < end; ++piece) {
    const haddr_t begin = std::max(address, piece->first);
    const haddr_t stop = std::min<haddr_t>(end, piece->first + piece->second.size());
    if (begin >= stop) continue;
    std::memcpy(out + (begin - address), piece->second.data() + (begin - piece->first),
                stop - begin);
  }
  return true;
}

void CommitFile::forget(haddr_t begin, haddr_t end) {
  auto piece = held_.upper_bound(begin);
  if (piece != held_.begin()) --piece;
  while (piece != held_.end() && piece->first < end) {
    const haddr_t first = piece->first;
    const haddr_t last = first + piece->second.size();
    if (last <= begin) {
      ++piece;
      continue;
    }
    std::vector<char> bytes = std::move(piece->second);
    piece = held_.erase(piece);
    if (first < begin) held_[first] = {bytes.begin(), bytes.begin() + (begin - first)};
    if (last > end) held_[end] = {bytes.begin() + (end - first), bytes.end()};
  }
}

void CommitFile::hold(haddr_t address, size_t size, const char* data) {
  auto same = held_.find(address);
  if (same != held_.end() && same->second.size() == size) {  // by far the most common case
    std::memcpy(same->second.data(), data, size);
    return;
  }
  forget(address, address + size);
  held_[address] = {data, data + size};
}

bool CommitFile::reserve(haddr_t end) {
  if (end <= reserved_ || is_rehearsal) return true;
  int result = 0;
  for (const haddr_t target : {end + kReserveAhead, end}) {
    result = strike(fd_, nullptr, 0, 0) ? ENOSPC
                                        : ::posix_fallocate(fd_, static_cast<off_t>(reserved_),
                                                            static_cast<off_t>(target - reserved_));
    if (result == EINVAL || result == EOPNOTSUPP) {  // no reservation here: a longer file is enough
      result = ::ftruncate(fd_, static_cast<off_t>(target)) == 0 ? 0 : errno;
    }
    if (result == 0) {
      reserved_ = target;
      return true;
    }
  }
  error_ = result;
  return false;
}

bool CommitFile::put(haddr_t address, const char* data, size_t size) {
  if (is_rehearsal) return true;
  while (size > 0) {
    ssize_t n = -1;
    if (strike(fd_, data, size, address)) {
      errno = ENOSPC;
    } else {
      n = ::pwrite(fd_, data, size, static_cast<off_t>(address));
    }
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      error_ = n < 0 ? errno : EIO;
      return false;
    }
    data += n;
    address += static_cast<haddr_t>(n);
    size -= static_cast<size_t>(n);
  }
  return true;
}

void CommitFile::write_raw(haddr_t address, size_t size, const char* data) {
  forget(address, address + size);  // freed metadata, its place used again
  if (reserve(address + size)) put(address, data, size);
}

bool CommitFile::commit() {
  if (error_ != 0) return false;
  if (!reserve(eoa_)) return false;
  // 1. pieces that are new on disk: nothing points to them yet
  // 2. the superblock: HDF5 refuses addresses beyond the end that it states
  // 3. B-tree nodes, parents first: the parent must know the new right half of a split node before
  //    the left half drops those entries (docs/run-file.md draws it)
  // 4. the rest: object headers, with the extents that make new chunks visible
  constexpr int kNew = 0, kSuperblock = 1, kTopTree = 2, kRest = 1000;
  constexpr int kTopLevel = 255;  // the level is one byte
  auto rank = [&](const std::pair<const haddr_t, std::vector<char>>& piece) {
    const std::vector<char>& bytes = piece.second;
    if (!on_disk_.contains(piece.first)) return kNew;
    if (piece.first == 0) return kSuperblock;
    // "TREE", node type, level: HDF5 File Format Specification 3.0, III.A.1.
    if (bytes.size() > 5 && std::memcmp(bytes.data(), "TREE", 4) == 0) {
      return kTopTree + kTopLevel - static_cast<unsigned char>(bytes[5]);
    }
    return kRest;
  };
  std::vector<std::pair<int, Pieces::const_iterator>> order;
  for (auto piece = held_.cbegin(); piece != held_.cend(); ++piece) {
    order.emplace_back(rank(*piece), piece);
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [unused, piece] : order) {
    if (!put(piece->first, piece->second.data(), piece->second.size())) return false;
    on_disk_.insert(piece->first);
  }
  held_.clear();
  committed_ = eoa_;
  return true;
}

namespace {

H5FD_t* driver_open(const char* name, unsigned flags, hid_t, haddr_t) {
  const bool writable = (flags & H5F_ACC_RDWR) != 0;
  int open_flags = writable && !is_rehearsal ? O_RDWR : O_RDONLY;
  if (flags & H5F_ACC_CREAT) open_flags |= O_CREAT;
  if (flags & H5F_ACC_EXCL) open_flags |= O_EXCL;
  const int fd = ::open(name, open_flags | O_CLOEXEC, 0666);
  if (fd < 0) return nullptr;
  // One writer at a time; not enforced on file systems without locks.
  const bool locked =
      !writable || is_rehearsal || ::flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
  struct stat status;
  if (!locked || ((flags & H5F_ACC_TRUNC) && ::ftruncate(fd, 0) != 0) ||
      ::fstat(fd, &status) != 0) {
    const int why = errno;
    ::close(fd);
    errno = why;
    return nullptr;
  }
  return &(new CommitFile(fd, static_cast<haddr_t>(status.st_size), writable))->base;
}
herr_t driver_close(H5FD_t* file) {
  delete &CommitFile::of(file);
  return 0;
}
int driver_compare(const H5FD_t* a, const H5FD_t* b) {
  struct stat x = {}, y = {};
  ::fstat(CommitFile::of(a).fd(), &x);
  ::fstat(CommitFile::of(b).fd(), &y);
  const auto key = [](const struct stat& s) { return std::pair(s.st_dev, s.st_ino); };
  return key(x) < key(y) ? -1 : key(y) < key(x) ? 1 : 0;
}
herr_t driver_query(const H5FD_t*, unsigned long* flags) {
  // No metadata accumulator: pieces must arrive one by one, so that commit() can order them.
  *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_DATA_SIEVE | H5FD_FEAT_AGGREGATE_SMALLDATA |
           H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
  return 0;
}
haddr_t driver_get_eoa(const H5FD_t* file, H5FD_mem_t) {
  return CommitFile::of(file).eoa();
}
herr_t driver_set_eoa(H5FD_t* file, H5FD_mem_t, haddr_t address) {
  CommitFile::of(file).set_eoa(address);
  return 0;
}
haddr_t driver_get_eof(const H5FD_t* file, H5FD_mem_t) {
  return CommitFile::of(file).eof();
}
herr_t driver_get_handle(H5FD_t* file, hid_t, void** handle) {
  *handle = file;
  return 0;
}
herr_t driver_read(H5FD_t* file, H5FD_mem_t type, hid_t, haddr_t address, size_t size, void* out) {
  const bool metadata = type != H5FD_MEM_DRAW;
  return CommitFile::of(file).read(address, size, static_cast<char*>(out), metadata) ? 0 : -1;
}
herr_t driver_write(H5FD_t* file, H5FD_mem_t type, hid_t, haddr_t address, size_t size,
                    const void* data) {
  CommitFile& commit_file = CommitFile::of(file);
  const char* bytes = static_cast<const char*>(data);
  if (type != H5FD_MEM_DRAW) {
    commit_file.hold(address, size, bytes);
    return 0;
  }
  // HDF5 1.10.8 crashes at exit after a failed write of its chunk cache, so failures are not
  // reported to it: writes after the first failure are dropped, and commit() reports it.
  if (commit_file.error() == 0) commit_file.write_raw(address, size, bytes);
  return 0;
}
herr_t driver_truncate(H5FD_t* file, hid_t, hbool_t) {
  CommitFile::of(file).truncate();
  return 0;
}

const H5FD_class_t& driver_class() {
  static const H5FD_class_t description = [] {
    H5FD_class_t c = {};
    c.name = "lockstep_commit";
    c.maxaddr = kMaxAddress;
    c.fc_degree = H5F_CLOSE_STRONG;
    c.open = driver_open;
    c.close = driver_close;
    c.cmp = driver_compare;
    c.query = driver_query;
    c.get_eoa = driver_get_eoa;
    c.set_eoa = driver_set_eoa;
    c.get_eof = driver_get_eof;
    c.get_handle = driver_get_handle;
    c.read = driver_read;
    c.write = driver_write;
    c.truncate = driver_truncate;
    const H5FD_mem_t map[H5FD_MEM_NTYPES] = H5FD_FLMAP_DICHOTOMY;
    std::copy(std::begin(map), std::end(map), std::begin(c.fl_map));
    return c;
  }();
  return description;
}

}  // namespace

hid_t commit_driver_access() {
  static const hid_t driver = H5FDregister(&driver_class());
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  // A kill may come between two pages of one write, so a B-tree node must not cross a page. Nodes
  // have 24 + 64 * 8 + 65 keys of 24 to 40 bytes (HDF5's default K of 32): 2096 to 3136.
  constexpr hsize_t kSmallestNode = 2096;
  if (driver < 0 || access < 0 || H5Pset_driver(access, driver, nullptr) < 0 ||
      H5Pset_alignment(access, kSmallestNode, kPage) < 0) {
    H5Pclose(access);
    return -1;
  }
  return access;
}

CommitFile& commit_file(hid_t file) {
  void* handle = nullptr;
  H5Fget_vfd_handle(file, H5P_DEFAULT, &handle);
  return *static_cast<CommitFile*>(handle);
}

bool commit(CommitFile& file) {
  return file.commit();
}
int write_error(const CommitFile& file) {
  return file.error();
}

void rehearse_commits() {
  is_rehearsal = true;
}

void set_write_fault(WriteFault kind, int64_t after) {
  fault = kind;
  fault_after = after;
  writes = 0;
}
int64_t write_count() {
  return writes;
}

}  // namespace lockstep
