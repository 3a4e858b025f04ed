// The header of safetensors files: what is written is read, and every malformed file is refused by name.
#include "safetensors/header.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace meshtorch::safetensors {
using namespace internal;
namespace {

std::string file_of(const std::string& json, std::size_t data_bytes) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(json.size() >> (8 * i)));
  return bytes + json + std::string(data_bytes, 'x');
}

Header parse(const std::string& bytes) {
  return parse_header("a.safetensors", std::as_bytes(std::span(bytes)), bytes.size());
}

std::string error_of(const std::string& bytes) {
  try {
    parse(bytes);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

std::string tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

TEST(SafetensorsHeader, WhatIsWrittenIsRead) {
  std::vector<StoredTensor> tensors{{.name = "w", .dtype = "F32", .shape = {2, 3}},
                                    {.name = "none", .dtype = "I64", .shape = {0, 7}},
                                    {.name = "scalar \"quoted\"", .dtype = "BF16", .shape = {}}};
  const std::string header = render_header(tensors, {{"format", "pt"}});
  EXPECT_EQ(header.size() % 8, 0U);
  EXPECT_EQ(tensors[0].begin, header.size());
  EXPECT_EQ(tensors[2].end, header.size() + 26);
  const Header parsed = parse(header + std::string(26, 'x'));
  EXPECT_EQ(parsed.tensors, tensors);
  EXPECT_EQ(parsed.metadata, (Metadata{{"format", "pt"}}));
}

TEST(SafetensorsHeader, AFileWithoutTensorsIsValid) {
  EXPECT_TRUE(parse(file_of("{}", 0)).tensors.empty());
  std::vector<StoredTensor> none;
  EXPECT_TRUE(parse(render_header(none, {})).tensors.empty());
}

TEST(SafetensorsHeader, TensorsAreInTheOrderOfTheirBytes) {
  const std::string json = R"({"b":)" + tensor("U8", "[4]", "[4,8]") + R"(,"a":)" +
                           tensor("U8", "[4]", "[0,4]") + R"(,"empty":)" + tensor("U8", "[0]", "[4,4]") +
                           "}   ";
  const Header header = parse(file_of(json, 8));
  ASSERT_EQ(header.tensors.size(), 3U);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[1].name, "empty");
  EXPECT_EQ(header.tensors[2].name, "b");
}

TEST(SafetensorsHeader, WritingRefusesRepeatedNamesAndUnknownTypes) {
  const auto error = [](std::vector<StoredTensor> tensors) {
    try {
      render_header(tensors, {});
    } catch (const std::invalid_argument& e) {
      return std::string(e.what());
    }
    return std::string("nothing was thrown");
  };
  EXPECT_EQ(
      error({{.name = "w", .dtype = "F32", .shape = {}}, {.name = "w", .dtype = "F32", .shape = {}}}),
      "meshtorch: tensor \"w\" is there twice, or has the name of the metadata\n  in: a file to be written\n"
      "  do: give every tensor a name of its own");
  EXPECT_EQ(
      error({{.name = "w", .dtype = "F7", .shape = {}}}),
      "meshtorch: tensor \"w\" has the unknown type \"F7\"\n  in: a file to be written\n  do: convert it");
}

struct Malformed {
  const char* name;
  std::string bytes;
  std::string what;
  std::string remedy;
};

const std::string kDamaged = "write the file again; it is damaged";
const std::string kCut = "copy or download the file again; it was cut short";

const Malformed kMalformed[] = {
    {"Empty", "", "a safetensors file begins with 8 bytes of header length, but this one has 0 bytes", kCut},
    {"SevenBytes", "1234567",
     "a safetensors file begins with 8 bytes of header length, but this one has 7 bytes", kCut},
    {"HeaderLengthBeyondFile", file_of("{}", 0).substr(0, 9),
     "the header says that it has 2 bytes, but only 1 bytes of the file follow",
     kCut + ", or is no safetensors file"},
    {"HeaderLengthHuge", std::string(8, '\xff') + "{}",
     "the header says that it has 18446744073709551615 bytes, but only 2 bytes of the file follow",
     kCut + ", or is no safetensors file"},
    {"NotAnObject", file_of("[1]", 0), "the header is JSON, but not an object of tensors",
     "write the file again; it is no safetensors file"},
    {"NameTwice",
     file_of(R"({"w":)" + tensor("U8", "[4]", "[0,4]") + R"(,"w":)" + tensor("U8", "[4]", "[4,8]") + "}", 8),
     "tensor \"w\" is there twice", "give every tensor a name of its own"},
    {"MetadataNoText", file_of(R"({"__metadata__":{"k":1}})", 0), "the metadata \"k\" is no text", kDamaged},
    {"NoShape", file_of(R"({"w":{"dtype":"U8","data_offsets":[0,4]}})", 4),
     R"(tensor "w" needs "dtype", "shape" and two "data_offsets", but is {"dtype":"U8","data_offsets":[0,4]})",
     kDamaged},
    {"OneOffset", file_of(R"({"w":)" + tensor("U8", "[4]", "[4]") + "}", 4),
     R"(tensor "w" needs "dtype", "shape" and two "data_offsets", but is )" + tensor("U8", "[4]", "[4]"),
     kDamaged},
    {"UnknownType", file_of(R"({"w":)" + tensor("F7", "[4]", "[0,4]") + "}", 4),
     "tensor \"w\" has the unknown type \"F7\"", "store it as F32, BF16, F16, I64, …"},
    {"NegativeSize", file_of(R"({"w":)" + tensor("U8", "[-4]", "[0,4]") + "}", 4),
     "tensor \"w\" has a size or an offset that is none: -4", kDamaged},
    {"FractionalOffset", file_of(R"({"w":)" + tensor("U8", "[4]", "[0,4.5]") + "}", 4),
     "tensor \"w\" has a size or an offset that is none: 4.5", kDamaged},
    {"OffsetBeyondInt64", file_of(R"({"w":)" + tensor("U8", "[4]", "[0,18446744073709551615]") + "}", 4),
     "tensor \"w\" has a size or an offset that is none: 18446744073709551615", kDamaged},
    {"EndBeforeBegin", file_of(R"({"w":)" + tensor("U8", "[4]", "[4,0]") + "}", 4),
     "tensor \"w\" has a byte range that ends before it begins: [4, 0)", kDamaged},
    {"RangeBeyondFile", file_of(R"({"w":)" + tensor("U8", "[8]", "[0,8]") + "}", 4),
     "tensor \"w\" has the bytes [0, 8), but the file has 4 bytes of data", kCut},
    {"SizeIsNotShape", file_of(R"({"w":)" + tensor("F32", "[2,3]", "[0,20]") + "}", 20),
     "tensor \"w\" of type F32 and shape [2, 3] takes 24 bytes, but has the range [0, 20)", kDamaged},
    {"WrongType", file_of(R"({"w":)" + tensor("F16", "[2,3]", "[0,24]") + "}", 24),
     "tensor \"w\" of type F16 and shape [2, 3] takes 12 bytes, but has the range [0, 24)", kDamaged},
    {"ShapeOverflows",
     file_of(R"({"w":)" + tensor("F32", "[4611686018427387904,4611686018427387904]", "[0,4]") + "}", 4),
     "tensor \"w\" has a shape beyond all memory: [4611686018427387904, 4611686018427387904]", kDamaged},
    {"Overlap",
     file_of(R"({"a":)" + tensor("U8", "[4]", "[0,4]") + R"(,"b":)" + tensor("U8", "[4]", "[2,6]") + "}", 6),
     "tensor \"b\" overlaps the bytes of tensor \"a\"", kDamaged},
    {"Gap",
     file_of(R"({"a":)" + tensor("U8", "[4]", "[0,4]") + R"(,"b":)" + tensor("U8", "[4]", "[6,10]") + "}",
             10),
     "tensor \"b\" begins 2 bytes after the end of what comes before it", kDamaged},
    {"GapAtTheEnd", file_of(R"({"a":)" + tensor("U8", "[4]", "[0,4]") + "}", 7),
     "the last 3 bytes of the file belong to no tensor", kDamaged},
};

class MalformedSafetensors : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedSafetensors, IsRefusedWithFileAndTensor) {
  EXPECT_EQ(error_of(GetParam().bytes),
            "meshtorch: " + GetParam().what + "\n  in: a.safetensors\n  do: " + GetParam().remedy);
}

INSTANTIATE_TEST_SUITE_P(Table, MalformedSafetensors, ::testing::ValuesIn(kMalformed),
                         [](const auto& each) { return std::string(each.param.name); });

TEST(SafetensorsHeader, BadJsonIsRefused) {
  for (const std::string json : {R"({"w":)", "", "{]", "\xff\xfe{}", R"({"w": NaN})"}) {
    const std::string error = error_of(file_of(json, 0));
    EXPECT_TRUE(error.starts_with("meshtorch: the header is not JSON: ")) << error;
    EXPECT_TRUE(
        error.ends_with("in: a.safetensors\n  do: write the file again; it is damaged, or is no "
                        "safetensors file"))
        << error;
  }
}

// Whatever bytes a file has, parsing ends with a header or with an error of ours.
TEST(SafetensorsHeader, FilesCutOrChangedAnywhereNeverCrash) {
  std::vector<StoredTensor> tensors{{.name = "w", .dtype = "F32", .shape = {2, 3}},
                                    {.name = "b", .dtype = "F16", .shape = {3}}};
  const std::string whole = render_header(tensors, {{"format", "pt"}}) + std::string(30, 'x');
  ASSERT_EQ(parse(whole).tensors, tensors);
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_TRUE(error_of(whole.substr(0, length)).starts_with("meshtorch: ")) << length;
  int refused = 0;
  for (std::size_t place = 0; place < whole.size() - 30; ++place) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = whole;
      changed[place] = static_cast<char>(changed[place] ^ (1 << bit));
      refused += error_of(changed).starts_with("meshtorch: ") ? 1 : 0;
    }
  }
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace meshtorch::safetensors
