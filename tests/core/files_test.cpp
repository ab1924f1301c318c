#include "core/files.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/catch.hpp"

using rmsnorm::read_file;
using rmsnorm::sha256;
using rmsnorm::write_file_atomically;

namespace {

/// An empty folder that goes away at the end.
class ScratchFolder {
 public:
  explicit ScratchFolder(const std::string& name)
      : path_(std::filesystem::temp_directory_path() / ("rmsnorm-files-test-" + name)) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~ScratchFolder() { std::filesystem::remove_all(path_); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  std::vector<std::string> entries() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  std::filesystem::path path_;
};

std::string error_of_write(const std::filesystem::path& file) {
  try {
    write_file_atomically(file, "new");
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "written";
}

}  // namespace

TEST_CASE("a file is made, replaced and read back byte for byte") {
  const ScratchFolder folder("replace");
  const std::string bytes("a\0\r\n\xff", 5);
  write_file_atomically(folder / "x", "a longer text that must go away");
  write_file_atomically(folder / "x", bytes);
  CHECK(read_file(folder / "x") == bytes);
  write_file_atomically(folder / "x", "");
  CHECK(read_file(folder / "x").empty());
  const std::string large(3'000'001, 'z');
  write_file_atomically(folder / "x", large);
  CHECK(read_file(folder / "x") == large);
  CHECK(folder.entries() == std::vector<std::string>{"x"});
}

TEST_CASE("a missing folder is made and a name of the greatest length works") {
  const ScratchFolder folder("make");
  write_file_atomically(folder / "a/b/c.txt", "text");
  CHECK(read_file(folder / "a/b/c.txt") == "text");
  const std::string longest(255, 'n');
  write_file_atomically(folder / longest, "text");
  CHECK(read_file(folder / longest) == "text");
}

TEST_CASE("a write that fails names the file and leaves everything as it was") {
  const ScratchFolder folder("fail");
  write_file_atomically(folder / "file", "old");
  std::filesystem::create_directories(folder / "taken/inner");
  const std::string taken = error_of_write(folder / "taken");
  CAPTURE(taken);
  CHECK(taken.find((folder / "taken").string() + ": renaming a temporary file to it failed: ") ==
        0);
  CHECK(std::filesystem::is_directory(folder / "taken/inner"));
  const std::string below = error_of_write(folder / "file/x");
  CAPTURE(below);
  CHECK(below.find((folder / "file/x").string() + ": ") == 0);
  CHECK(error_of_write((folder / "file").string() + "/") != "written");
  CHECK(error_of_write(folder / std::string(256, 'n')) != "written");
  CHECK(error_of_write("") != "written");
  CHECK(read_file(folder / "file") == "old");
  CHECK(folder.entries() == std::vector<std::string>{"file", "taken"});
}

TEST_CASE("a file goes into the folder that is held open, whatever has its name by then") {
  const ScratchFolder folder("moved");
  std::filesystem::create_directories(folder / "home");
  const int home = ::open((folder / "home").c_str(), O_RDONLY | O_DIRECTORY);
  REQUIRE(home >= 0);
  std::filesystem::rename(folder / "home", folder / "moved");
  write_file_atomically(home, folder / "home/x", "first");
  CHECK_FALSE(std::filesystem::exists(folder / "home"));
  std::filesystem::create_directories(folder / "home");
  write_file_atomically(home, folder / "home/y", "second");
  CHECK(read_file(folder / "moved/x") == "first");
  CHECK(read_file(folder / "moved/y") == "second");
  CHECK(std::filesystem::is_empty(folder / "home"));
  std::filesystem::remove_all(folder / "moved");
  std::string error = "written";
  try {
    write_file_atomically(home, folder / "home/z", "third");
  } catch (const std::runtime_error& failure) {
    error = failure.what();
  }
  ::close(home);
  CHECK(error.find((folder / "home/z").string() + ": making a temporary file beside it") == 0);
}

TEST_CASE("a folder in which nothing can be made is an error that names the file") {
  // Not even root makes a file there.
  const std::string error = error_of_write("/proc/self/rmsnorm-test");
  CAPTURE(error);
  CHECK(error.find("/proc/self/rmsnorm-test: ") == 0);
}

TEST_CASE("writers and readers of one name see whole files only") {
  const ScratchFolder folder("race");
  const auto file = folder / "x";
  write_file_atomically(file, std::string(20'000, 'a'));
  std::atomic<int> torn{0}, failed{0};
  const auto write = [&](char c) {
    for (int i = 0; i < 30; ++i) {
      try {
        write_file_atomically(file, std::string(20'000, c));
      } catch (const std::exception&) {
        ++failed;
      }
    }
  };
  const auto read = [&] {
    for (int i = 0; i < 200; ++i) {
      const std::string text = read_file(file);
      if (text.size() != 20'000 || text.find_first_not_of(text[0]) != std::string::npos) ++torn;
    }
  };
  std::vector<std::thread> threads;
  threads.emplace_back(write, 'b');
  threads.emplace_back(write, 'c');
  threads.emplace_back(read);
  for (std::thread& thread : threads) thread.join();
  CHECK(torn == 0);
  CHECK(failed == 0);
  CHECK(folder.entries() == std::vector<std::string>{"x"});
}

TEST_CASE("a file that cannot be read is an error that names it") {
  const ScratchFolder folder("read");
  CHECK_THROWS_AS(read_file(folder / "missing"), std::runtime_error);
  CHECK_THROWS_AS(read_file(folder / ""), std::runtime_error);
  try {
    read_file(folder / "missing");
  } catch (const std::runtime_error& error) {
    CHECK(std::string(error.what()).find((folder / "missing").string() + ": opening it failed: ") ==
          0);
  }
}

TEST_CASE("SHA-256 gives the published digests") {
  CHECK(sha256("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(sha256(std::string(1'000'000, 'a')) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("SHA-256 pads correctly on both sides of a block's end") {
  CHECK(sha256(std::string(55, '\xff')) ==
        "aadaed00a3c5fbb8072ae7f1984ba8199fbe5272de427d11eaf31583af37db51");
  CHECK(sha256(std::string(56, '\xff')) ==
        "528ff50ab05e77bbbd224a9ec86165dbb6824a9a9efb544be0a1d57d5b416457");
  CHECK(sha256(std::string(63, '\xff')) ==
        "d12449c8124182545ae91924286cc6af13528bcf62a5ddbd5e00b891fffc1b48");
  CHECK(sha256(std::string(64, '\xff')) ==
        "8667e718294e9e0df1d30600ba3eeb201f764aad2dad72748643e4a285e1d1f7");
  CHECK(sha256(std::string(65, '\xff')) ==
        "855c9a28fff2bbbd71327165554a00c6fdd44d5d58c1f12b8fdff29b5d67f001");
  CHECK(sha256(std::string(119, '\xff')) ==
        "b863f94597d433ef2280e3b4656f13ea265a79bb8047287321c218905b03c99b");
  CHECK(sha256(std::string(120, '\xff')) ==
        "9088fee917e5a748c2f0b4f5458c1cbdabbd696291c69be6e605bae0ef779e8f");
  CHECK(sha256(std::string(128, '\xff')) ==
        "e9175db65a9789096ca9cb5524d3abc2107df03e3c9ba3af1aca628f9c5d3bd2");
}
