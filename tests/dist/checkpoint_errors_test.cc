// Checkpoints that cannot be saved or loaded: every rank says why, and none hangs.
#include <meshtorch/checkpoint.h>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "numbers.h"
#include "scratch_directory.h"

namespace meshtorch::testing {
namespace {

namespace cp = mt::checkpoint;
namespace fs = std::filesystem;
using mt::DTensor;
using mt::Partial;
using mt::Replicate;
using mt::Shard;

// Stands in the way of the file that a rank will write.
std::string block_file(const ScratchDirectory& directory, const std::string& name) {
  const std::string path = directory / (name + ".tmp");
  on_rank_0([&] { fs::create_directories(path + "/kept"); });  // not empty, so that nothing clears it away
  return path;
}

void change_byte(const std::string& path, int64_t from_end) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-from_end, std::ios::end);
  const char byte = static_cast<char>(file.get());
  file.seekp(-from_end, std::ios::end);
  file.put(static_cast<char>(byte ^ 1));
}

TEST(CheckpointErrors, AnotherJobThatSavesToTheDirectoryIsNamed) {
  on_ranks(3, [](int rank) {
    const ScratchDirectory directory("locked");
    const cp::State state = cp::State().add("tensor", mt::ones({6}, line(3), {Shard(0)}));
    int other = -1;
    if (rank == 0) {
      other = open(directory.path().c_str(), O_RDONLY | O_DIRECTORY);
      EXPECT_EQ(flock(other, LOCK_EX | LOCK_NB), 0);
    }
    mt::barrier();
    const std::string error = error_of([&] { cp::save(directory.path(), state); });
    EXPECT_NE(error.find("meshtorch: another job saves to this directory\n  directory: " + directory.path()),
              std::string::npos)
        << error;
    if (rank == 0) {
      EXPECT_NE(error.find("job: process " + std::to_string(getpid()) + " ("), std::string::npos) << error;
      close(other);
    }
    mt::barrier();
    cp::save(directory.path(), state);
    cp::AsyncSave first = cp::save_async(directory.path(), state);
    cp::save(directory.path(), state);
    first.wait();
    EXPECT_TRUE(cp::exists(directory.path()));
  });
}

TEST(CheckpointErrors, IfOneRankCannotWriteAllThrowAndTheOldOneStays) {
  on_ranks(3, [](int rank) {
    const ScratchDirectory directory("cannot_write");
    const DTensor tensor = mt::ones({6}, line(3), {Shard(0)});
    const cp::State state = cp::State().add("tensor", tensor);
    cp::save(directory.path(), state);
    tensor.zero_();
    const std::string path = block_file(directory, "data-000002-00001.safetensors");
    const std::string expected = "meshtorch: cannot create the file: Is a directory\n  in: " + path +
                                 "\n  do: name a file in this directory" +
                                 (rank == 1 ? "" : "\n  on: rank 1");
    EXPECT_EQ(error_of([&] { cp::save(directory.path(), state); }), expected);
    mt::barrier();  // each rank has removed what it wrote, so that the next save has the same number
    EXPECT_EQ(error_of([&] { cp::save_async(directory.path(), state).wait(); }), expected);
    mt::barrier();
    // An error that nobody waited for is thrown by the next save, once.
    cp::save_async(directory.path(), state);
    EXPECT_EQ(error_of([&] { cp::save(directory.path(), state); }), expected);
    cp::load(directory.path(), state);
    EXPECT_TRUE(is_equal(tensor.full_tensor(), torch::ones({6})));
    mt::barrier();
    on_rank_0([&] { fs::remove_all(path); });
    tensor.fill_(2);
    cp::save(directory.path(), state);
    cp::load(directory.path(), state);
    EXPECT_TRUE(is_equal(tensor.full_tensor(), torch::full({6}, 2.0F)));
  });
}

TEST(CheckpointErrors, IfTheIndexCannotBeWrittenAllThrow) {
  on_ranks(2, [](int rank) {
    const ScratchDirectory directory("cannot_commit");
    const DTensor tensor = mt::ones({6}, line(2), {Shard(0)});
    const std::string path = block_file(directory, "checkpoint.json");
    EXPECT_EQ(error_of([&] { cp::save(directory.path(), cp::State().add("tensor", tensor)); }),
              "meshtorch: cannot create the file: Is a directory\n  in: " + path +
                  "\n  do: name a file in this directory" + (rank == 0 ? "" : "\n  on: rank 0"));
    EXPECT_FALSE(cp::exists(directory.path()));
  });
}

TEST(CheckpointErrors, DirectoriesThatCannotBeMadeAreNamed) {
  on_ranks(2, [](int rank) {
    const ScratchDirectory directory("no_directory");
    on_rank_0([&] { std::ofstream(directory / "file") << "x"; });
    int64_t step = 0;
    EXPECT_EQ(error_of([&] { cp::save(directory / "file/below", cp::State().add("step", step)); }),
              "meshtorch: cannot make the directory of the file: Not a directory\n  in: " +
                  directory / "file/below" + "\n  do: check the path" + (rank == 0 ? "" : "\n  on: rank 0"));
    EXPECT_EQ(
        error_of([&] { cp::load(directory / "nothing", cp::State().add("step", step)); }),
        "meshtorch: there is no checkpoint, that is no checkpoint.json\n  in: " + directory / "nothing" +
            "\n  do: name the directory that save() wrote" + (rank == 0 ? "" : "\n  on: rank 0"));
  });
}

TEST(CheckpointErrors, ChangedBytesAreFoundByTheirChecksum) {
  on_ranks(3, [](int) {
    const ScratchDirectory directory("changed");
    const DTensor saved = mt::distribute_tensor(numbers({6}), line(3), {Shard(0)});
    cp::save(directory.path(), cp::State().add("tensor", saved));
    const std::string file = directory / "data-000001-00001.safetensors";
    on_rank_0([&] { change_byte(file, 1); });
    // Ranks that do not read the byte hear of it too.
    const DTensor target = mt::zeros({6}, line(3), {Shard(0)});
    const std::string error =
        error_of([&] { cp::load(directory.path(), cp::State().add("tensor", target)); });
    EXPECT_TRUE(
        error.starts_with("meshtorch: tensor \"tensor[2:4]\" has other bytes than were written: the checksum "
                          "of bytes [0, "))
        << error;
    EXPECT_NE(
        error.find(") is wrong\n  in: " + file + "\n  do: load another checkpoint; this one is damaged"),
        std::string::npos)
        << error;
    // What is whole can be loaded.
    const torch::Tensor nothing = torch::zeros({0});
    EXPECT_NE(error_of([&] { cp::load(directory.path(), cp::State().add("tensor", nothing)); }).find("shape"),
              std::string::npos);
  });
}

TEST(CheckpointErrors, DamagedFilesAreNamedOnEveryRank) {
  on_ranks(2, [](int) {
    const ScratchDirectory directory("damaged");
    const DTensor tensor = mt::distribute_tensor(numbers({4, 4}), line(2), {Shard(0)});
    const cp::State state = cp::State().add("tensor", tensor);
    const auto error_after = [&](const std::function<void()>& damage) {
      cp::save(directory.path(), state);
      on_rank_0(damage);
      const std::string error = error_of([&] { cp::load(directory.path(), state); });
      mt::barrier();
      return error;
    };
    const auto of_rank_1 = [&] {
      for (const auto& entry : fs::directory_iterator(directory.path())) {
        if (entry.path().string().ends_with("-00001.safetensors")) return entry.path().string();
      }
      return std::string("none");
    };
    const auto names = [](const std::string& error, const std::string& what, const std::string& where) {
      return error.find(what) != std::string::npos && error.find(where) != std::string::npos
                 ? ::testing::AssertionSuccess()
                 : ::testing::AssertionFailure() << error;
    };
    EXPECT_TRUE(names(error_after([&] { fs::resize_file(of_rank_1(), fs::file_size(of_rank_1()) - 1); }),
                      "but the file has 31 bytes of data", "-00001.safetensors"));
    EXPECT_TRUE(names(error_after([&] { fs::resize_file(of_rank_1(), 0); }), "this one has 0 bytes",
                      "-00001.safetensors"));
    EXPECT_TRUE(names(error_after([&] { fs::remove(of_rank_1()); }), "No such file", "-00001.safetensors"));
    EXPECT_TRUE(names(error_after([&] { std::ofstream(directory / "checkpoint.json") << "{"; }),
                      "the index of the checkpoint cannot be read", "checkpoint.json"));
    EXPECT_TRUE(names(error_after([&] { fs::remove(directory / "checkpoint.json"); }),
                      "there is no checkpoint", directory.path()));
  });
}

TEST(CheckpointErrors, StatesThatDoNotFitAreRefusedBeforeAnythingChanges) {
  on_ranks(2, [](int) {
    const ScratchDirectory directory("unfit");
    const DTensor tensor = mt::ones({4}, line(2), {Shard(0)});
    torch::nn::Linear layer(3, 2);
    int64_t step = 7;
    cp::save(directory.path(), cp::State().add("tensor", tensor).add("model", *layer).add("step", step));
    const std::string where = "\n  in: " + directory / "checkpoint.json" + "\n  do: ";
    const auto load = [&](const cp::State& state) {
      return error_of([&] { cp::load(directory.path(), state); });
    };
    const DTensor longer = mt::zeros({5}, line(2), {Shard(0)});
    tensor.zero_();
    EXPECT_EQ(load(cp::State().add("step", step).add("tensor", longer)),
              "meshtorch: tensor \"tensor\" has the shape [4] in the checkpoint, and [5] in memory" + where +
                  "build the state with the sizes that were saved");
    EXPECT_EQ(
        load(cp::State().add("tensor", tensor).add("other", tensor)),
        "meshtorch: the checkpoint has no part \"other\"" + where + "load it into the state that was saved");
    EXPECT_EQ(tensor.sum().item<double>(), 0);
    torch::nn::Linear without_bias(torch::nn::LinearOptions(3, 2).bias(false));
    EXPECT_EQ(load(cp::State().add("model", *without_bias)),
              "meshtorch: the checkpoint has a tensor \"model.bias\" that the state has not" + where +
                  "load it into the state that was saved");
    torch::nn::BatchNorm1d other(2);
    EXPECT_EQ(load(cp::State().add("model", *other)),
              "meshtorch: tensor \"model.weight\" has the shape [2, 3] in the "
              "checkpoint, and [2] in memory" +
                  where + "build the state with the sizes that were saved");
    const DTensor pending = mt::zeros({4}, line(2), {Partial()});
    EXPECT_EQ(load(cp::State().add("tensor", pending)),
              "meshtorch: tensor \"tensor\" is a pending reduction, [P(sum)]: no rank has its values\n  in: "
              "saving or "
              "loading it\n  do: redistribute it to Replicate() or Shard(dim) first");
    std::string text = "x";
    EXPECT_EQ(load(cp::State().add("step", text)),
              "meshtorch: the value \"step\" is 7 in the checkpoint, and of another type here, \"x\"\n  in: "
              "loading it\n"
              "  do: load it into a value of its type");
  });
}

TEST(CheckpointErrors, RanksThatNameDifferentDirectoriesAreToldAndNothingIsLeft) {
  on_ranks(2, [](int rank) {
    const ScratchDirectory directory("directories");
    const std::string mine = directory.path() + "/" + std::to_string(rank);
    fs::create_directories(mine);
    const torch::Tensor x = mt::distribute_tensor(torch::arange(4.), line(2), {mt::Shard(0)});
    const std::string error = error_of([&] { cp::save(mine, cp::State().add("x", x)); });
    EXPECT_NE(error.find("what rank 1 has saved is not in the directory of rank 0"), std::string::npos)
        << error;
    EXPECT_NE(error.find("do: give one directory, that all ranks see, on every rank"), std::string::npos)
        << error;
    EXPECT_TRUE(fs::is_empty(mine));
  });
}

TEST(CheckpointErrors, RanksThatDisagreeAreTold) {
  on_ranks(2, [](int rank) {
    const ScratchDirectory directory("disagree");
    int64_t step = rank;
    EXPECT_EQ(
        error_of([&] { cp::save(directory.path(), cp::State().add("step", step)); }),
        "meshtorch: the ranks have different values to save: rank 0 {\"step\":0}, rank 1 {\"step\":1}\n  in: "
        "saving a state\n  do: give the same state on every rank");
    const torch::Tensor tensor = torch::zeros({rank + 1});
    EXPECT_EQ(error_of([&] { cp::save(directory.path(), cp::State().add("tensor", tensor)); }),
              "meshtorch: the ranks disagree on tensor \"tensor\": F32 [0:1] before, F32 [0:2] on rank 1\n  "
              "in: saving "
              "it\n  do: give the same global tensor on every rank");
  });
}

TEST(CheckpointErrors, FakeRanksHaveNothingToSave) {
  mt::init_process_group({.backend = "fake", .init_method = "tcp://none:0", .rank = 0, .world_size = 8});
  int64_t step = 0;
  EXPECT_EQ(error_of([&] { cp::save("nowhere", cp::State().add("step", step)); }),
            "meshtorch: fake ranks hold no data to save or load\n  in: a world of 8 fake ranks\n  do: use "
            "threads or "
            "gloo");
  EXPECT_FALSE(fs::exists("nowhere"));
  mt::destroy_process_group();
}

TEST(CheckpointErrors, ThreadsWithoutAStoreCannotSaveInTheBackground) {
  if (ranks_are_processes()) GTEST_SKIP() << "the launcher's variables say another rank";
  const std::string directory = scratch_path("own_threads").string();
  const auto run = [&](int rank) {
    mt::init_process_group({.init_method = "threads://checkpoint", .rank = rank, .world_size = 2});
    int64_t step = 3;
    const cp::State state = cp::State().add("step", step);
    EXPECT_EQ(error_of([&] { cp::save_async(directory, state); }),
              "meshtorch: these ranks have no store through which they could agree in the background\n  in: "
              "save_async"
              "\n  do: use save, or start the ranks with spawn");
    cp::save(directory, state);
    step = 0;
    cp::load(directory, state);
    EXPECT_EQ(step, 3);
    mt::destroy_process_group();
  };
  {
    const std::jthread one(run, 1), zero(run, 0);
  }
  fs::remove_all(directory);
}

TEST(CheckpointErrors, StatesThatCannotBeSavedAreRefused) {
  on_ranks(1, [](int) {
    const ScratchDirectory directory("refused");
    int64_t step = 0;
    EXPECT_EQ(error_of([&] { cp::State().add("a", step).add("a", step); }),
              "meshtorch: the state has two parts named \"a\"\n  in: State::add\n  do: give each a name of "
              "its own");
    EXPECT_EQ(error_of([&] { cp::State().add("a.b", step); }),
              "meshtorch: a part of a state cannot be named \"a.b\"\n  in: State::add\n  do: use a name "
              "without dots");
    const torch::Tensor meta = torch::zeros({2}, torch::kMeta);
    EXPECT_EQ(error_of([&] { cp::save(directory.path(), cp::State().add("a", meta)); }),
              "meshtorch: tensor \"a\" is on the meta device and has no values\n  in: saving it\n  do: give "
              "it values "
              "first");
    const torch::Tensor complex = torch::zeros({2}, torch::kComplexDouble);
    EXPECT_EQ(
        error_of([&] { cp::save(directory.path(), cp::State().add("a", complex)); }),
        "meshtorch: safetensors files have no type for ComplexDouble\n  in: writing tensor \"a\"\n  do: "
        "convert it first");
  });
}

}  // namespace
}  // namespace meshtorch::testing
