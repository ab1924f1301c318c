#include "train/checkpoint.hpp"

#include <fmt/format.h>

#include <charconv>
#include <fstream>
#include <string_view>

#include "core/files.hpp"
#include "train/checkpoint_archive.hpp"

namespace rmsnorm {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "rmsnorm-checkpoint ";
constexpr std::size_t kMaxHeaderBytes = 160;

std::string header(int format, std::size_t bytes, const std::string& sum) {
  return fmt::format("{}{} {} {}\n", kMagic, format, bytes, sum);
}

/// The number at the front of `text`, which loses it and the character behind it.
template <class T>
bool take_number(std::string_view& text, T& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end == text.data() + text.size() || *end != ' ') return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()) + 1);
  return true;
}

struct Header {
  std::size_t length = 0;  ///< of the line, its end included
  std::size_t bytes = 0;
  std::string sum;
};

Header parse_header(const fs::path& file, std::string_view front) {
  const auto damaged = [&](std::string_view got) {
    throw DamagedCheckpoint(fmt::format("{}: must start with the line `{}{} BYTES SHA256`; {}",
                                        file.string(), kMagic, checkpoint_format, got));
  };
  if (!front.starts_with(kMagic)) damaged("it does not: not a checkpoint of rmsnorm, or damaged");
  const std::size_t end = front.find('\n');
  if (end == std::string_view::npos) damaged("that line does not end");
  std::string_view fields = front.substr(kMagic.size(), end - kMagic.size());
  int format = 0;
  Header result{.length = end + 1};
  if (!take_number(fields, format)) damaged("the format is not a number");
  if (format != checkpoint_format) {
    throw CheckpointError(fmt::format(
        "{}: format must be {}; got {}{}", file.string(), checkpoint_format, format,
        format > checkpoint_format ? ", written by a newer rmsnorm: use that one" : ""));
  }
  if (!take_number(fields, result.bytes)) damaged("the length is not a number");
  result.sum = fields;
  if (front.substr(0, end + 1) != header(format, result.bytes, result.sum))
    damaged("it is spelled otherwise");
  return result;
}

/// Looks at the header and the size before anything is read whole.
Header read_header(const fs::path& file) {
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  if (!fs::is_regular_file(status)) {
    throw CheckpointError(fmt::format(
        "{}: must be a checkpoint file; {}", file.string(),
        status.type() == fs::file_type::not_found ? "there is none" : "it is no regular file"));
  }
  std::string front(kMaxHeaderBytes, '\0');
  std::ifstream stream(file, std::ios::binary);
  stream.read(front.data(), static_cast<std::streamsize>(front.size()));
  if (stream.bad() || !stream.is_open()) {
    throw CheckpointError(fmt::format("{}: must be readable; it is not", file.string()));
  }
  front.resize(static_cast<std::size_t>(stream.gcount()));
  const Header result = parse_header(file, front);
  const std::uintmax_t size = fs::file_size(file, error);
  if (error || size != result.length + result.bytes) {
    throw DamagedCheckpoint(
        fmt::format("{}: must have {} bytes, as its first line says; got {}: truncated or damaged",
                    file.string(), result.length + result.bytes, error ? 0 : size));
  }
  return result;
}

}  // namespace

std::string encode_checkpoint(const Snapshot& snapshot, const std::vector<ParameterShape>& shapes) {
  const std::string payload =
      describe(snapshot, shapes).dump() + "\n" + encode_tensors(snapshot, shapes);
  return header(checkpoint_format, payload.size(), sha256(payload)) + payload;
}

OpenCheckpoint open_checkpoint(const fs::path& file) {
  const Header header = read_header(file);
  std::string bytes = read_file(file);
  bytes.erase(0, header.length);
  if (const std::string sum = sha256(bytes); sum != header.sum) {
    throw DamagedCheckpoint(
        fmt::format("{}: SHA-256 must be {}; got {}: damaged", file.string(), header.sum, sum));
  }
  const std::size_t end = bytes.find('\n');
  OpenCheckpoint result{.file = file};
  try {
    result.meta = nlohmann::json::parse(bytes.substr(0, end));
    static_cast<void>(result.identity());
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(fmt::format("{}: the second line must be JSON with an identity; got {}",
                                      file.string(), first_line(error.what())));
  }
  bytes.erase(0, end + 1);
  result.archive = std::move(bytes);
  return result;
}

std::string checkpoint_name(std::int64_t step) {
  return fmt::format("step-{:06}.ckpt", step);
}

}  // namespace rmsnorm
