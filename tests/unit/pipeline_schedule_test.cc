// Pipeline schedules: the CSV format, the proof and what it refuses, and what each schedule promises.
#include "meshtorch/pipeline_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <stdexcept>

namespace meshtorch {
namespace {

using Kind = PipelineAction::Kind;

// The message that `call` throws, or nothing.
template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

std::string error_of_table(const std::string& csv) {
  return error_of([&] { prove(PipelineTable::from_csv(csv)); });
}

double largest_idle(const PipelineTable& table, const PipelineTimes& times = {}) {
  return std::ranges::max(prove(table, times).idle);
}

int peak(const PipelineTable& table) { return std::ranges::max(prove(table).peak_activations); }

bool exists(const std::string& name, const PipelineSize& size) {
  if (name == "DualPipeV") return size.microbatches >= 2 * size.ranks;
  if (name.starts_with("Interleaved"))
    return size.microbatches % std::max(1, size.microbatches / size.ranks) == 0;
  return true;
}

// The sizes for which a schedule must pass: up to 16 stages and 64 micro-batches.
std::vector<PipelineSize> sizes_of(const std::string& name) {
  const bool has_one_stage = name == "GPipe" || name == "1F1B" || name == "ZBH1";
  const bool has_any = name.starts_with("Interleaved") || name == "LoopedBFS";
  std::vector<PipelineSize> sizes;
  for (int each = has_one_stage ? 1 : 2; each <= (has_one_stage ? 1 : has_any ? 4 : 2); ++each) {
    for (int ranks = 1; ranks * each <= 16; ++ranks) {
      for (int microbatches = 1; microbatches <= 64; microbatches += microbatches < 17   ? 1
                                                                     : microbatches < 48 ? 5
                                                                                         : 4)
        if (exists(name, {ranks, microbatches, each})) sizes.push_back({ranks, microbatches, each});
    }
  }
  return sizes;
}

TEST(PipelineAction, PrintsAsPyTorchDoes) {
  const auto text = [](PipelineAction action) { return action.to_string(); };
  EXPECT_EQ(text({.kind = Kind::forward, .stage = 2, .microbatch = 0}), "2F0");
  EXPECT_EQ(text({.kind = Kind::send_backward, .stage = 3, .microbatch = 11}), "3SEND_B11");
  EXPECT_EQ(text({.kind = Kind::unshard, .stage = 1}), "1UNSHARD");
  EXPECT_EQ(text({}), "");
}

TEST(PipelineCsv, RoundTripsActionsIdleEntriesAndOverlappedPairs) {
  const std::string csv =
      "0UNSHARD,0F0,0SEND_F0,,0RECV_B0,(0F1;0B0)OVERLAP_F_B,0I1,0W1,0REDUCE_GRAD,0RESHARD\n"
      ",1RECV_F0,1F0,1B0,1SEND_B0\n";
  const PipelineTable table = PipelineTable::from_csv(csv);
  EXPECT_EQ(table.to_csv(), csv);
  ASSERT_EQ(table.rows.size(), 2U);
  EXPECT_EQ(table.rows[0][5], (PipelineAction{Kind::forward, 0, 1, true}));
  EXPECT_EQ(table.rows[0][6], (PipelineAction{Kind::backward, 0, 0}));
  EXPECT_EQ(table.rows[1][0], PipelineAction{});
}

TEST(PipelineCsv, ReadsBlanksQuotesAndTheLineEndsOfPythonsWriter) {
  EXPECT_EQ(PipelineTable::from_csv("\"0F0\" , 0B0\r\n\"\"\r\n").to_csv(), "0F0,0B0\n\n");
  EXPECT_EQ(PipelineTable::from_csv("0F0").to_csv(), "0F0\n");
}

TEST(PipelineCsv, RefusesWhatIsNoAction) {
  EXPECT_EQ(error_of([] { PipelineTable::from_csv("0F0,0B0\n1F0,,1X0"); }),
            "meshtorch: \"1X0\" is no action of a pipeline\n  in: row 1 (rank 1), column 2\n  do: write "
            "stage, action and "
            "micro-batch, as 2F0; the actions are F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B, and without "
            "micro-batch UNSHARD, "
            "RESHARD, REDUCE_GRAD");
  for (const std::string entry :
       {"F0", "0F", "0F0x", "-1F0", "0f0", "0UNSHARD1", "99999999999F0", "(0F0)OVERLAP_F_B",
        "(0B0;0F1)OVERLAP_F_B", "(0F0;0B0", "(0F0;0B0)OVERLAP", "0", ";"})
    EXPECT_NE(error_of([&] { PipelineTable::from_csv(entry); }).find("is no action"), std::string::npos)
        << entry;
}

TEST(PipelineProof, SaysTimeIdleAndActivations) {
  const PipelineProof proof = prove(PipelineTable::from_csv("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"));
  EXPECT_EQ(proof.stages, 2);
  EXPECT_EQ(proof.microbatches, 2);
  EXPECT_EQ(proof.rank_of_stage, (std::vector{0, 1}));
  EXPECT_EQ(proof.seconds, 9);
  EXPECT_EQ(proof.idle, (std::vector<double>{3, 0}));
  EXPECT_EQ(proof.peak_activations, (std::vector{2, 1}));
  ASSERT_EQ(proof.timeline[1].size(), 4U);
  EXPECT_EQ(proof.timeline[1][1].begin, 2);
  EXPECT_EQ(proof.timeline[1][1].end, 4);
}

TEST(PipelineProof, CountsTheTimeOfMessagesBetweenRanksOnly) {
  const auto seconds = [](const char* csv) {
    return prove(PipelineTable::from_csv(csv), {.message = 0.5}).seconds;
  };
  EXPECT_EQ(seconds("0F0,0B0\n1F0,1B0\n"), 7);
  EXPECT_EQ(seconds("0F0,1F0,1B0,0B0\n"), 6);
}

TEST(PipelineProof, TakesTablesThatOnlyGoForward) {
  const PipelineProof proof = prove(PipelineTable::from_csv("0F0,0F1\n1F0,1F1\n"));
  EXPECT_EQ(proof.seconds, 3);
  EXPECT_EQ(proof.peak_activations, (std::vector{0, 0}));
}

TEST(PipelineProof, RefusesRowsInTheWrongOrder) {
  EXPECT_EQ(error_of_table("0F0,0B0\n1B0,1F0\n"),
            "meshtorch: 1B0 comes before 1F0, whose activations it needs\n  in: row 1 (rank 1), column 0\n  "
            "do: put 1F0 before 1B0");
  EXPECT_EQ(error_of_table("0F0,,0W0,0I0\n"),
            "meshtorch: 0W0 comes before 0I0, whose gradients it needs\n  in: row 0 (rank 0), column 2\n  "
            "do: put 0I0 before 0W0");
  EXPECT_EQ(error_of_table("0F0,0B0,0F0\n"),
            "meshtorch: 0F0 is there twice\n  in: row 0 (rank 0), column 2\n  do: remove one of them");
  EXPECT_EQ(error_of_table("0F0,0B0,0I0\n"),
            "meshtorch: 0I0 is there beside 0B0\n  in: row 0 (rank 0), column 2\n  do: keep B, or I and W");
}

TEST(PipelineProof, CountsAnOverlappedPairAsOneColumn) {
  EXPECT_NE(error_of_table("0F0,(0F1;0B0)OVERLAP_F_B,0B1,0B1\n").find("column 3"), std::string::npos);
}

TEST(PipelineProof, RefusesWhatIsMissing) {
  EXPECT_EQ(error_of_table("0F0,0F1,0B0,0B1\n1F0,1B0,1F1\n"),
            "meshtorch: the pipeline table has no 1B1\n  in: row 1 (rank 1)\n  do: add 1B1");
  EXPECT_EQ(
      error_of_table("0F0,0I0\n"),
      "meshtorch: the pipeline table has no 0W0, though it has 0I0\n  in: row 0 (rank 0)\n  do: add 0W0");
  EXPECT_EQ(error_of_table("0F0,0B0\n1B0\n"),
            "meshtorch: 1B0 comes before 1F0, whose activations it needs\n  in: row 1 (rank 1), column 0\n  "
            "do: put 1F0 before 1B0");
  EXPECT_EQ(error_of_table("0F0,2F0\n"),
            "meshtorch: the pipeline table has stage 2 and no stage 1\n  in: all rows\n  do: number each "
            "stage from 0");
  EXPECT_EQ(error_of_table("0F2000000000\n"),
            "meshtorch: the pipeline table has micro-batch 2000000000 and no micro-batch 0\n  in: all rows\n "
            " do: number each micro-batch from 0");
  EXPECT_EQ(error_of_table(",\n"),
            "meshtorch: the pipeline table has no action\n  in: its 1 rows\n  do: give each rank the actions "
            "of its stages, as 0F0");
}

TEST(PipelineProof, RefusesAStageOnTwoRanks) {
  EXPECT_EQ(error_of_table("0F0,1F0,0B0\n1B0\n"),
            "meshtorch: stage 1 is on rank 0 and on rank 1\n  in: row 1 (rank 1), column 0\n  do: give all "
            "actions of a stage to one rank");
}

TEST(PipelineProof, NamesTheCircleOfATableThatCannotEnd) {
  EXPECT_EQ(error_of_table("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n"),
            "meshtorch: the pipeline table cannot end:\n"
            "    rank 0 waits at column 1, 0B0, for 1B0 at column 2 of rank 1\n"
            "    rank 1 waits at column 1, 1F1, for 0F1 at column 2 of rank 0\n"
            "  in: row 0 (rank 0), column 1\n"
            "  do: move an action of this circle behind the one it waits for");
}

TEST(PipelineProof, RefusesMessagesThatNeedABuffer) {
  // Each sends before it receives.
  EXPECT_EQ(error_of_table("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                           "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n"),
            "meshtorch: the pipeline table ends only if messages are buffered:\n"
            "    rank 0 waits at column 3, 0SEND_F1, for 1RECV_F1 at column 4 of rank 1\n"
            "    rank 1 waits at column 3, 1SEND_B0, for 0RECV_B0 at column 4 of rank 0\n"
            "  in: row 0 (rank 0), column 3\n"
            "  do: give both ranks of a pair their messages in one order");
}

TEST(PipelineProof, RefusesMessagesThatDoNotMatch) {
  EXPECT_EQ(error_of_table("0F0,0SEND_F0\n1F0\n"),
            "meshtorch: 1F0 comes before 1RECV_F0, which brings its input\n  in: row 1 (rank 1), column 0\n  "
            "do: put 1RECV_F0 before 1F0");
  EXPECT_EQ(error_of_table("0F0\n1RECV_F0,1F0\n"),
            "meshtorch: the pipeline table has no 0SEND_F0, though rank 1 waits for it\n  in: row 0 (rank "
            "0)\n  do: add 0SEND_F0");
  EXPECT_EQ(error_of_table("0SEND_F0,0F0\n1RECV_F0,1F0\n"),
            "meshtorch: 0SEND_F0 comes before 0F0, whose output it sends\n  in: row 0 (rank 0), column 0\n  "
            "do: put 0F0 before 0SEND_F0");
  EXPECT_EQ(error_of_table("0F0,0SEND_F0,1F0\n"),
            "meshtorch: 0SEND_F0 has no other rank to talk to: stage 1 is on the same rank\n  in: row 0 "
            "(rank 0), column 1\n  do: remove it");
  EXPECT_EQ(error_of_table("0F0,0SEND_B0\n"),
            "meshtorch: 0SEND_B0 has no other rank to talk to: there is no stage -1\n  in: row 0 (rank 0), "
            "column 1\n  do: remove it");
}

TEST(PipelineProof, RefusesStagesThatRunWithoutTheirParameters) {
  EXPECT_EQ(error_of_table("0UNSHARD,0F0,0RESHARD,0B0\n"),
            "meshtorch: 0B0 runs while the parameters of stage 0 are not gathered\n  in: row 0 (rank 0), "
            "column 3\n  do: put 0UNSHARD before it");
  EXPECT_EQ(error_of_table("0UNSHARD,0UNSHARD,0F0\n"),
            "meshtorch: 0UNSHARD finds the parameters of stage 0 gathered already\n  in: row 0 (rank 0), "
            "column 1\n  do: alternate UNSHARD "
            "and RESHARD of a stage");
  EXPECT_EQ(error_of_table("0F0,0F1,0B0,0REDUCE_GRAD,0B1\n"),
            "meshtorch: 0REDUCE_GRAD comes before the gradients of micro-batch 1\n  in: row 0 (rank 0), "
            "column 3\n  do: put it after the "
            "last B or W of stage 0");
}

// Without one action, or with two actions of a row exchanged, a table is refused or still right: never played
// past its end.
TEST(PipelineProof, EveryTableWithoutOneActionIsRefused) {
  for (const std::string& name : pipeline_schedule_names()) {
    const PipelineTable whole = add_messages(make_pipeline_table(name, {2, 4}));
    for (std::size_t rank = 0; rank < 2; ++rank) {
      for (std::size_t i = 0; i < whole.rows[rank].size(); ++i) {
        PipelineTable table = whole;
        table.rows[rank].erase(table.rows[rank].begin() + static_cast<std::ptrdiff_t>(i));
        EXPECT_THROW(prove(table), std::invalid_argument)
            << name << " without " << whole.rows[rank][i].to_string();
      }
    }
  }
}

class PipelineSchedules : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, PipelineSchedules, ::testing::ValuesIn(pipeline_schedule_names()),
                         [](const auto& schedule) { return schedule.param; });

TEST_P(PipelineSchedules, PassTheProofUpTo16StagesAnd64MicroBatches) {
  for (const PipelineSize& size : sizes_of(GetParam())) {
    SCOPED_TRACE(testing::Message() << size.ranks << " ranks, " << size.microbatches << " micro-batches, "
                                    << size.stages_per_rank << " stages a rank");
    const PipelineTable table = make_pipeline_table(GetParam(), size);
    PipelineProof proof;
    ASSERT_NO_THROW(proof = prove(table));
    ASSERT_EQ(proof.stages, size.ranks * size.stages_per_rank);
    ASSERT_EQ(proof.microbatches, size.microbatches);
  }
}

TEST_P(PipelineSchedules, ArePlayedEquallyWithTheirMessages) {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    const PipelineTimes times{1.5, 2, 1, 0.25};
    const PipelineTable table = make_pipeline_table(GetParam(), {ranks, 2 * ranks});
    const PipelineTable complete = add_messages(table, times);
    EXPECT_EQ(prove(complete, times).seconds, prove(table, times).seconds) << ranks;
    EXPECT_EQ(PipelineTable::from_csv(complete.to_csv()), complete);
    EXPECT_EQ(add_messages(complete, times), complete);
  }
}

TEST_P(PipelineSchedules, NeedNoBufferWhateverTheTimes) {
  for (const PipelineTimes times :
       {PipelineTimes{0, 0, 0, 0}, PipelineTimes{5, 1, 0, 3}, PipelineTimes{0.1, 0, 7, 0.3}}) {
    for (const int ranks : {2, 3, 7})
      EXPECT_NO_THROW(prove(make_pipeline_table(GetParam(), {ranks, 4 * ranks}), times)) << ranks;
  }
}

TEST_P(PipelineSchedules, RunWithGatheredParameters) {
  for (const int ranks : {1, 2, 4}) {
    const PipelineTable table = add_gathers(make_pipeline_table(GetParam(), {ranks, 2 * ranks}));
    const PipelineProof proof = prove(table);
    for (std::size_t rank = 0; rank < table.rows.size(); ++rank) {
      const auto count = [&](Kind kind) {
        return std::ranges::count(table.rows[rank], kind, &PipelineAction::kind);
      };
      EXPECT_EQ(count(Kind::unshard), count(Kind::reshard));
      EXPECT_EQ(count(Kind::reduce_gradients), proof.stages / ranks);
    }
    EXPECT_NO_THROW(prove(add_messages(table)));
  }
}

// Bubbles are what the two papers of sail-sg give, for stages of 1/ranks of the model.
TEST(PipelineBubble, Of1F1BAndGPipeIsOneMicroBatchForEachOtherRank) {
  const PipelineTimes times{2, 3, 1.5};
  for (int ranks = 1; ranks <= 16; ++ranks) {
    for (const int microbatches : {ranks, 2 * ranks, 64}) {
      const double bubble = (ranks - 1) * (2 + 3 + 1.5);
      EXPECT_DOUBLE_EQ(largest_idle(make_pipeline_table("1F1B", {ranks, microbatches}), times), bubble);
      EXPECT_DOUBLE_EQ(largest_idle(make_pipeline_table("GPipe", {ranks, microbatches}), times), bubble);
    }
  }
}

TEST(PipelineBubble, OfSeveralStagesIsDividedByTheStagesOfARank) {
  const PipelineTimes times{2, 3, 1.5};  // of a stage, 1/each of what a rank has
  for (const int ranks : {2, 4, 8}) {
    for (const int each : {2, 4}) {
      const auto idle = [&](const char* name) {
        return largest_idle(make_pipeline_table(name, {ranks, 4 * ranks, each}), times);
      };
      EXPECT_DOUBLE_EQ(idle("Interleaved1F1B"), (ranks - 1) * (2 + 3 + 1.5)) << ranks;
      EXPECT_DOUBLE_EQ(idle("LoopedBFS"), (ranks - 1) * (2 + 3 + 1.5)) << ranks;
      EXPECT_DOUBLE_EQ(idle("InterleavedZeroBubble"), (ranks - 1) * (2 + 3 - 1.5)) << ranks;
    }
  }
}

TEST(PipelineBubble, OfDualPipeVWithoutOverlapIsASixthAtEqualTimes) {
  // Two stages on a rank: the bubble of 1F1B is 6 slots for each other rank.
  for (int ranks = 2; ranks <= 16; ++ranks)
    EXPECT_EQ(largest_idle(make_pipeline_table("DualPipeV", {ranks, 64})), ranks - 1) << ranks;
}

TEST(PipelineBubble, OfZeroBubbleH1IsForwardPlusInputMinusWeight) {
  for (const PipelineTimes times :
       {PipelineTimes{1, 1, 1}, PipelineTimes{2, 2, 1.5}, PipelineTimes{1, 1.25, 1}}) {
    for (int ranks = 1; ranks <= 16; ++ranks) {
      for (const int microbatches : {2 * ranks, 64})
        EXPECT_DOUBLE_EQ(largest_idle(make_pipeline_table("ZBH1", {ranks, microbatches}), times),
                         (ranks - 1) * (times.forward + times.backward_input - times.backward_weight))
            << ranks << " " << microbatches;
    }
  }
}

TEST(PipelineBubble, OfZeroBubbleVIsZeroAtEqualTimes) {
  for (int ranks = 1; ranks <= 16; ++ranks) {
    for (const int microbatches : {2 * ranks, 64})
      EXPECT_EQ(largest_idle(make_pipeline_table("ZBVZeroBubble", {ranks, microbatches})), 0) << ranks;
  }
}

// A stage is half of what a rank has: the bubble of 1F1B is 6 slots for each other rank.
TEST(PipelineBubble, OfVHalfIsAtMostHalfThatOf1F1B) {
  for (int ranks = 2; ranks <= 16; ++ranks) {
    for (const int microbatches : {ranks, 2 * ranks, 64})
      EXPECT_LE(largest_idle(make_pipeline_table("VHalf", {ranks, microbatches})), 6 * (ranks - 1) / 2.0)
          << ranks << " " << microbatches;
  }
}

TEST(PipelineBubble, OfVMinIsAtMostTwoThirdsOfThatOf1F1B) {
  for (int ranks = 2; ranks <= 16; ++ranks) {
    for (const int microbatches : {ranks, 2 * ranks, 64})
      EXPECT_LE(largest_idle(make_pipeline_table("VMin", {ranks, microbatches})), 6 * (ranks - 1) * 2 / 3.0)
          << ranks << " " << microbatches;
  }
}

TEST(PipelineMemory, IsWhatThePapersSay) {
  for (int ranks = 2; ranks <= 16; ++ranks) {
    SCOPED_TRACE(ranks);
    EXPECT_EQ(peak(make_pipeline_table("GPipe", {ranks, 64})), 64);
    EXPECT_EQ(peak(make_pipeline_table("1F1B", {ranks, 64})), ranks);
    EXPECT_EQ(peak(make_pipeline_table("ZBH1", {ranks, 64})), ranks);
    // Two stages on a rank: 2 are one of 1F1B's.
    EXPECT_EQ(peak(make_pipeline_table("ZBVZeroBubble", {ranks, 64})), 2 * ranks);
    EXPECT_EQ(peak(make_pipeline_table("DualPipeV", {ranks, 64})), 2 * ranks + 1);
    EXPECT_EQ(peak(make_pipeline_table("Interleaved1F1B", {ranks, 4 * ranks})), 2 * ranks + ranks - 1);
    EXPECT_EQ(peak(make_pipeline_table("InterleavedZeroBubble", {ranks, 4 * ranks})), 2 * ranks);
    EXPECT_LE(peak(make_pipeline_table("VHalf", {ranks, 64})), ranks + 2);
    EXPECT_LE(peak(make_pipeline_table("VMin", {ranks, 64})), 2 * ((ranks + 2) / 3 + 1));
  }
}

TEST(PipelineMemory, ARankHoldsNoMoreThanThereIs) {
  for (const std::string& name : pipeline_schedule_names()) {
    if (!exists(name, {4, 1})) continue;
    EXPECT_LE(peak(make_pipeline_table(name, {4, 1})), 2) << name;
  }
}

TEST(MakePipelineTable, TakesNamesInAnyCase) {
  EXPECT_EQ(make_pipeline_table("interleaved1f1b", {2, 4}), make_pipeline_table("Interleaved1F1B", {2, 4}));
}

TEST(MakePipelineTable, RefusesSizesThatDoNotExist) {
  const auto error = [](const char* name, PipelineSize size) {
    return error_of([&] { make_pipeline_table(name, size); });
  };
  EXPECT_EQ(error("2F2B", {2, 2}),
            "meshtorch: there is no pipeline schedule \"2F2B\"\n  in: make_pipeline_table\n  do: take one of "
            "GPipe, 1F1B, Interleaved1F1B, "
            "LoopedBFS, ZBH1, InterleavedZeroBubble, ZBVZeroBubble, DualPipeV, VHalf, VMin");
  EXPECT_EQ(error("GPipe", {0, 2}),
            "meshtorch: GPipe got 0 ranks and 2 micro-batches\n  in: make_pipeline_table\n  do: give one or "
            "more of each");
  EXPECT_EQ(error("1F1B", {2, 2, 2}),
            "meshtorch: 1F1B has 1 stages on a rank, not 2\n  in: make_pipeline_table\n  do: set "
            "stages_per_rank to 1, or leave it out");
  EXPECT_EQ(error("DualPipeV", {2, 3}),
            "meshtorch: DualPipeV needs as many micro-batches as stages, and got 3 micro-batches for 4 "
            "stages\n  in: make_pipeline_table\n"
            "  do: give 4 micro-batches or more, or take ZBVZeroBubble");
  EXPECT_EQ(error("Interleaved1F1B", {2, 5}),
            "meshtorch: Interleaved1F1B runs 2 ranks in rounds of equal size, and 5 micro-batches are no "
            "multiple of 2 rounds\n"
            "  in: make_pipeline_table\n  do: take a multiple of 2 micro-batches");
}

TEST(BestPipelineTable, TakesNoBubbleWhereThereIsMemoryForIt) {
  const PipelineChoice choice = best_pipeline_table(4, 16, {}, 4);
  EXPECT_LE(choice.peak_activations, 4);
  EXPECT_LE(choice.proof.seconds,
            prove(make_pipeline_table("ZBVZeroBubble", {4, 16}), {0.5, 0.5, 0.5}).seconds);
}

TEST(BestPipelineTable, KeepsToTheMemoryAndTakesNoMoreTimeWithMore) {
  for (const PipelineTimes times :
       {PipelineTimes{}, PipelineTimes{2, 1.8, 1.2, 0.1}, PipelineTimes{1, 2, 0.5, 0.3}}) {
    double seconds = std::numeric_limits<double>::infinity();
    for (const double most : {3.0, 3.5, 4.0, 5.0, 6.0, 8.0, 16.0, 64.0}) {
      const PipelineChoice choice = best_pipeline_table(6, 24, times, most);
      EXPECT_LE(choice.peak_activations, most);
      EXPECT_LE(choice.proof.seconds, seconds) << choice.schedule << " with " << most;
      seconds = choice.proof.seconds;
    }
    EXPECT_LE(seconds, prove(make_pipeline_table("1F1B", {6, 24}), times).seconds);
  }
}

TEST(BestPipelineTable, SaysHowMuchMemoryIsNeeded) {
  EXPECT_EQ(error_of([] { best_pipeline_table(6, 12, {}, 1.5); }),
            "meshtorch: no pipeline schedule of 6 ranks and 12 micro-batches holds at most 1.5 activations: "
            "the smallest holds 3\n"
            "  in: best_pipeline_table\n  do: allow 3");
}

}  // namespace
}  // namespace meshtorch
