#include "src/record/hdf5/file_block.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "src/core/error.h"

namespace lockstep {
namespace {

//   0-15 magic   16-19 version   20-23 block size   24-31 length   32-63 SHA-256   zero to 511
constexpr size_t kMagicBytes = 16;
constexpr size_t kVersionAt = 16, kSizeAt = 20, kLengthAt = 24, kHashAt = 32, kHashBytes = 32;
constexpr uint32_t kBlockVersion = 1;
constexpr uint64_t kLargestBlock = 1 << 20;
constexpr int kByteBits = 8;

uint64_t little_endian(const unsigned char* bytes, size_t count) {
  uint64_t value = 0;
  for (size_t i = 0; i < count; ++i) value |= static_cast<uint64_t>(bytes[i]) << (kByteBits * i);
  return value;
}

void put_little_endian(unsigned char* bytes, uint64_t value, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<unsigned char>(value >> (kByteBits * i));
  }
}

std::string hex(const unsigned char* bytes, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += fmt::format("{:02x}", bytes[i]);
  return text;
}

struct Sha256 {
  std::array<unsigned char, kHashBytes> digest{};
  uint64_t length = 0;  // of what was hashed
};

// The hash of the rest of the file. Nothing: the file cannot be read; errno says why.
std::optional<Sha256> sha256_of(int file) {
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  const std::unique_ptr<EVP_MD_CTX, Free> context(EVP_MD_CTX_new());
  if (context == nullptr || EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) != 1) {
    throw std::runtime_error("SHA-256 is not available");
  }
  constexpr size_t kChunk = 1 << 20;
  std::vector<char> chunk(kChunk);
  Sha256 found;
  for (;;) {
    const ssize_t got = ::read(file, chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::nullopt;
    if (got == 0) break;
    EVP_DigestUpdate(context.get(), chunk.data(), static_cast<size_t>(got));
    found.length += static_cast<uint64_t>(got);
  }
  EVP_DigestFinal_ex(context.get(), found.digest.data(), nullptr);
  return found;
}

class OpenFile {
 public:
  OpenFile(const std::string& path, int flags) : id_(::open(path.c_str(), flags | O_CLOEXEC)) {}
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() { close(); }
  int id() const { return id_; }
  bool close() {  // false: what was written may be lost
    const int id = std::exchange(id_, -1);
    return id < 0 || ::close(id) == 0;
  }
  // The first bytes, as many as there are.
  size_t read_start(unsigned char* into, size_t count) const {
    const ssize_t got = ::pread(id_, into, count, 0);
    return got < 0 ? 0 : static_cast<size_t>(got);
  }

 private:
  int id_;
};

}  // namespace

FileStart read_file_start(const std::string& path) {
  std::error_code status;
  if (!std::filesystem::is_regular_file(path, status)) {  // reading a pipe would wait
    return {"", status ? status.value() : EINVAL};
  }
  const OpenFile file(path, O_RDONLY);
  if (file.id() < 0) return {"", errno};
  std::string bytes(kMagicBytes, '\0');
  const ssize_t got = ::pread(file.id(), bytes.data(), bytes.size(), 0);
  if (got < 0) return {"", errno};
  bytes.resize(static_cast<size_t>(got));
  return {bytes, 0};
}

bool FileStart::is_hdf5() const {
  constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";
  return bytes.starts_with(kSignature);
}

bool has_block(const std::string& path, const BlockKind& kind) {
  return read_file_start(path).bytes == kind.magic;
}

bool looks_like_hdf5(const std::string& path) {
  return read_file_start(path).is_hdf5();
}

FileBlock check_file_block(const std::string& path, const BlockKind& kind) {
  const std::string who = fmt::format("{} '{}': ", kind.noun, path);
  std::error_code status;
  const bool is_regular = std::filesystem::is_regular_file(path, status);
  if (status) throw InputError(who + std::strerror(status.value()));
  if (!is_regular) throw InputError(who + "is not a regular file");
  const OpenFile file(path, O_RDONLY);
  struct stat facts = {};
  if (file.id() < 0 || ::fstat(file.id(), &facts) != 0) {
    throw InputError(who + std::strerror(errno));
  }
  const auto bytes = static_cast<uint64_t>(facts.st_size);
  std::array<unsigned char, kLeastBlock> block{};
  const size_t had = file.read_start(block.data(), block.size());
  if (std::memcmp(block.data(), kind.magic.data(), kMagicBytes) != 0) {
    throw InputError(fmt::format("{}does not begin with {}", who, kind.magic),
                     std::string(kind.origin));
  }
  if (had < block.size()) {
    throw InputError(fmt::format("{}has {} bytes, at least {} required", who, bytes, kLeastBlock),
                     "the file is truncated");
  }
  const uint64_t version = little_endian(&block[kVersionAt], sizeof(uint32_t));
  if (version != kBlockVersion) {
    throw InputError(
        fmt::format("{}its block has version {}, must be {}", who, version, kBlockVersion),
        version > kBlockVersion ? "a newer version of Lockstep wrote it" : "");
  }
  FileBlock found{little_endian(&block[kSizeAt], sizeof(uint32_t)),
                  little_endian(&block[kLengthAt], sizeof(uint64_t)),
                  hex(&block[kHashAt], kHashBytes)};
  if (!std::has_single_bit(found.size) || found.size < kLeastBlock || found.size > kLargestBlock) {
    throw InputError(
        fmt::format("{}its block gives its own size as {} bytes, a power of two in {}..{} "
                    "required",
                    who, found.size, kLeastBlock, kLargestBlock));
  }
  if (bytes < found.size || bytes - found.size != found.length) {
    throw InputError(
        fmt::format("{}has {} bytes after its block of {}, the block says {}", who,
                    bytes < found.size ? 0 : bytes - found.size, found.size, found.length),
        "the file is truncated, or something was added");
  }
  ::lseek(file.id(), static_cast<off_t>(found.size), SEEK_SET);
  const std::optional<Sha256> now = sha256_of(file.id());
  if (!now) throw InputError(who + std::strerror(errno));
  if (const std::string hash = hex(now->digest.data(), kHashBytes); hash != found.sha256) {
    throw InputError(
        fmt::format("{}SHA-256 of its data is {}, the block says {}", who, hash, found.sha256),
        "the file was damaged or edited after it was written");
  }
  return found;
}

int write_file_block(const std::string& path, const BlockKind& kind, uint64_t size) {
  OpenFile file(path, O_RDWR);
  if (file.id() < 0) return errno;
  if (::lseek(file.id(), static_cast<off_t>(size), SEEK_SET) < 0) return errno;
  const std::optional<Sha256> data = sha256_of(file.id());
  if (!data) return errno;
  std::array<unsigned char, kLeastBlock> block{};
  std::memcpy(block.data(), kind.magic.data(), kMagicBytes);
  put_little_endian(&block[kVersionAt], kBlockVersion, sizeof(uint32_t));
  put_little_endian(&block[kSizeAt], size, sizeof(uint32_t));
  put_little_endian(&block[kLengthAt], data->length, sizeof(uint64_t));
  std::memcpy(&block[kHashAt], data->digest.data(), kHashBytes);
  size_t done = 0;
  while (done < block.size()) {
    const ssize_t n =
        ::pwrite(file.id(), block.data() + done, block.size() - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? errno : EIO;
    done += static_cast<size_t>(n);
  }
  if (::fsync(file.id()) != 0 || !file.close()) return errno;
  return 0;
}

}  // namespace lockstep
