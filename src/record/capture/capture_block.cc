#include "src/record/capture/capture_block.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <vector>

#include "src/core/error.h"

namespace lockstep {
namespace {

//   0-15 magic   16-19 version   20-23 block size   24-31 length   32-63 SHA-256   zero to 511
constexpr std::string_view kMagic = "LOCKSTEP-CAPTURE";
constexpr size_t kVersionAt = 16, kSizeAt = 20, kLengthAt = 24, kHashAt = 32, kHashBytes = 32;
constexpr uint32_t kBlockVersion = 1;
constexpr uint64_t kLeastBlock = 512, kLargestBlock = 1 << 20;

uint64_t little_endian(const unsigned char* bytes, size_t count) {
  constexpr int kByteBits = 8;
  uint64_t value = 0;
  for (size_t i = 0; i < count; ++i) value |= static_cast<uint64_t>(bytes[i]) << (kByteBits * i);
  return value;
}

std::string hex(const unsigned char* bytes, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += fmt::format("{:02x}", bytes[i]);
  return text;
}

// Of the rest of the stream.
std::string sha256_of(std::ifstream& file) {
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  const std::unique_ptr<EVP_MD_CTX, Free> context(EVP_MD_CTX_new());
  if (context == nullptr || EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) != 1) {
    throw std::runtime_error("SHA-256 is not available");
  }
  constexpr size_t kChunk = 1 << 20;
  std::vector<char> chunk(kChunk);
  while (file.read(chunk.data(), static_cast<std::streamsize>(chunk.size())), file.gcount() > 0) {
    EVP_DigestUpdate(context.get(), chunk.data(), static_cast<size_t>(file.gcount()));
  }
  std::array<unsigned char, kHashBytes> digest{};
  EVP_DigestFinal_ex(context.get(), digest.data(), nullptr);
  return hex(digest.data(), digest.size());
}

}  // namespace

bool looks_like_capture(const std::string& path) {
  std::error_code status;
  if (!std::filesystem::is_regular_file(path, status)) return false;  // reading a pipe would wait
  std::ifstream file(path, std::ios::binary);
  std::array<char, kMagic.size()> magic{};
  return file.read(magic.data(), magic.size()) &&
         std::string_view(magic.data(), magic.size()) == kMagic;
}

CaptureBlock check_capture_block(const std::string& path) {
  const std::string who = "capture '" + path + "': ";
  std::error_code status;
  const bool is_regular = std::filesystem::is_regular_file(path, status);
  if (status) throw InputError(who + status.message());
  if (!is_regular) throw InputError(who + "is not a regular file");
  std::ifstream file(path, std::ios::binary);
  if (!file) throw InputError(who + std::strerror(errno));
  const uint64_t bytes = std::filesystem::file_size(path);
  std::array<unsigned char, kLeastBlock> block{};
  file.read(reinterpret_cast<char*>(block.data()), block.size());
  if (!looks_like_capture(path)) {
    throw InputError(who + "does not begin with " + std::string(kMagic),
                     "lockstep_capture writes such files; an unfinished one lacks this");
  }
  if (static_cast<size_t>(file.gcount()) < block.size()) {
    throw InputError(fmt::format("{}has {} bytes, at least {} required", who, bytes, kLeastBlock),
                     "the file is truncated");
  }
  const uint64_t version = little_endian(&block[kVersionAt], sizeof(uint32_t));
  if (version != kBlockVersion) {
    throw InputError(
        fmt::format("{}its block has version {}, must be {}", who, version, kBlockVersion),
        version > kBlockVersion ? "a newer lockstep_capture wrote it" : "");
  }
  CaptureBlock found{little_endian(&block[kSizeAt], sizeof(uint32_t)),
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
  file.clear();
  file.seekg(static_cast<std::streamoff>(found.size));
  if (const std::string hash = sha256_of(file); hash != found.sha256) {
    throw InputError(
        fmt::format("{}SHA-256 of its data is {}, the block says {}", who, hash, found.sha256),
        "the file was damaged or edited after it was written");
  }
  return found;
}

}  // namespace lockstep
