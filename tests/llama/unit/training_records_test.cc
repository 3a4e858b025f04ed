// What a training tells of itself: learning rate, log, progress, loss curve.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "records.h"
#include "schedule.h"
#include "temporary_file.h"

namespace llama {
namespace {

TEST(LearningRate, RisesToThePeakThenFallsToTheFinalRate) {
  const LearningRate rate{.peak = 1, .final_fraction = 0.1, .warmup_steps = 4, .total_steps = 15};
  EXPECT_DOUBLE_EQ(rate.at(0), 0.25);
  EXPECT_DOUBLE_EQ(rate.at(3), 1);
  EXPECT_DOUBLE_EQ(rate.at(4), 1);
  EXPECT_DOUBLE_EQ(rate.at(9), 0.55);
  EXPECT_DOUBLE_EQ(rate.at(14), 0.1);
  EXPECT_DOUBLE_EQ(rate.at(1000), 0.1);
}

TEST(LearningRate, NeedsNoWarmUpAndNoFall) {
  EXPECT_DOUBLE_EQ((LearningRate{.peak = 2, .warmup_steps = 0, .total_steps = 1}.at(0)), 2);
  EXPECT_DOUBLE_EQ((LearningRate{.peak = 2, .warmup_steps = 5, .total_steps = 5}.at(4)), 2);
}

StepRecord record(std::int64_t step, double loss) {
  return {.step = step,
          .loss = loss,
          .learning_rate = 0.1,
          .gradient_norm = 2.5,
          .seconds = 0.25,
          .tokens_per_second = 12345,
          .communication_share = 0.126};
}

TEST(TrainingLog, NumbersReadBackBitForBit) {
  const StepRecord written = record(7, 1.0 / 3);
  const StepRecord read = step_record_from_json(to_json_line(written));
  EXPECT_EQ(read.step, 7);
  EXPECT_EQ(read.loss, written.loss);
  EXPECT_EQ(read.communication_share, written.communication_share);
  EXPECT_EQ(to_json_line(record(1, 0.5)),
            R"({"step":1,"loss":0.5,"learning_rate":0.1,"gradient_norm":2.5,"seconds":0.25,)"
            R"("tokens_per_second":12345.0,"communication_share":0.126})");
}

TEST(TrainingLog, ALossThatIsNotFiniteIsNull) {
  const std::string line = to_json_line(record(1, std::numeric_limits<double>::infinity()));
  EXPECT_NE(line.find(R"("loss":null)"), std::string::npos);
  EXPECT_TRUE(std::isnan(step_record_from_json(line).loss));
}

TEST(TrainingLog, ALineThatIsNoRecordIsAnError) {
  const auto error_of = [](const std::string& line) -> std::string {
    try {
      step_record_from_json(line);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_of(R"({"step": 1e300})"),
            "a line of the log is no record of a step: the step is no whole number\n  line: \"{\\\"step\\\": "
            "1e300}\"\n"
            "  do: name another file by --log, or take the line out");
  for (const char* line : {"", "12", "[]", R"({"step": 1})"})
    EXPECT_TRUE(error_of(line).starts_with("a line of the log is no record of a step: ")) << line;
}

TEST(TrainingLog, GoesOnWhereTheTrainingDoes) {
  const TemporaryFile file("log.jsonl", to_json_line(record(1, 3)) + "\n" + to_json_line(record(2, 2)) +
                                            "\n" + to_json_line(record(3, 1.5)) + "\n{\"step\":4,\"lo");
  TrainingLog log(file.path(), /*done_steps=*/2);
  EXPECT_EQ(log.records().size(), 2u);
  log.add(record(3, 1));
  EXPECT_EQ(file.content(), to_json_line(record(1, 3)) + "\n" + to_json_line(record(2, 2)) + "\n" +
                                to_json_line(record(3, 1)) + "\n");
}

TEST(TrainingLog, ANewTrainingStartsANewLog) {
  const TemporaryFile file("log.jsonl", to_json_line(record(1, 3)) + "\n");
  TrainingLog log(file.path(), /*done_steps=*/0);
  EXPECT_EQ(file.content(), "");
}

TEST(TrainingLog, AFolderThatIsMissingIsAnError) {
  try {
    TrainingLog("no/such/folder/log.jsonl", 0);
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(),
                 "cannot write the log no/such/folder/log.jsonl.\n  option --log\n  do: name a "
                 "file in a folder that exists");
  }
}

TEST(Progress, IsLinesWhereThereIsNoTerminal) {
  std::ostringstream out;
  Progress progress(out, {.total_steps = 120, .is_terminal = false, .every = 50});
  for (int step = 1; step <= 120; ++step) progress.show(record(step, 4.0 / step));
  progress.finish();
  EXPECT_EQ(out.str(),
            "step   1/120  loss 4.0000  12.3k tokens/s  comm 13%  0:30 left\n"
            "step  50/120  loss 0.0800  12.3k tokens/s  comm 13%  0:18 left\n"
            "step 100/120  loss 0.0400  12.3k tokens/s  comm 13%  0:05 left\n"
            "step 120/120  loss 0.0333  12.3k tokens/s  comm 13%  0:00 left\n");
}

TEST(Progress, IsABarOnATerminal) {
  std::ostringstream out;
  Progress progress(out, {.total_steps = 2, .is_terminal = true});
  progress.show(record(1, 4));
  EXPECT_EQ(out.str(),
            "\rstep 1/2  ████████████░░░░░░░░░░░░  loss 4.0000  12.3k tokens/s  comm 13%  0:00 left\x1b[K");
  progress.show(record(2, 4));
  progress.finish();
  EXPECT_TRUE(out.str().ends_with(
      "████████████████████████  loss 4.0000  12.3k tokens/s  comm 13%  0:00 left\x1b[K\n"));
}

TEST(Progress, TimesAndNumbersAreShort) {
  EXPECT_EQ(clock_time(0.4), "0:00");
  EXPECT_EQ(clock_time(247), "4:07");
  EXPECT_EQ(clock_time(3753), "1:02:33");
  EXPECT_EQ(short_number(950), "950");
  EXPECT_EQ(short_number(12345), "12.3k");
  EXPECT_EQ(short_number(4.1e6), "4.1M");
}

TEST(LossCurve, DrawsEveryFiniteLoss) {
  const std::string svg =
      loss_curve_svg({record(1, 4), record(2, 3), record(3, std::nan("")), record(4, 2)}, "loss <of> a & b");
  EXPECT_TRUE(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720.0 360.0\""));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_NE(svg.find("loss &lt;of> a &amp; b"), std::string::npos);
  // Steps 1, 2 and 4 from left to right, losses 4, 3 and 2 from top to bottom.
  EXPECT_NE(svg.find("points=\"64.0,59.8 274.7,178.0 696.0,296.2 \""), std::string::npos) << svg;
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

// The y of the points of one of the picture's lines.
std::vector<double> heights(const std::string& svg, std::size_t number) {
  std::size_t at = 0;
  for (std::size_t i = 0; i <= number; ++i) at = svg.find("points=\"", at) + 8;
  std::istringstream points(svg.substr(at, svg.find('"', at) - at));
  std::vector<double> ys;
  char comma = 0;
  for (double x = 0, y = 0; points >> x >> comma >> y;) ys.push_back(y);
  return ys;
}

TEST(LossCurve, TheSmoothedLineDoesNotLagWhereTheLossFallsFastest) {
  std::vector<StepRecord> records;
  for (int step = 1; step <= 1000; ++step) records.push_back(record(step, 1 + 4 * std::exp(-step / 20.0)));
  const std::string svg = loss_curve_svg(records, "");
  const std::vector<double> raw = heights(svg, 0), smoothed = heights(svg, 1);
  ASSERT_EQ(raw.size(), 1000u);
  ASSERT_EQ(smoothed.size(), 1000u);
  // The picture is 260 high.
  for (std::size_t i = 0; i < raw.size(); ++i) EXPECT_NEAR(smoothed[i], raw[i], 12) << "step " << i + 1;
  EXPECT_EQ(smoothed[0], raw[0]);
}

TEST(LossCurve, TheSmoothedLineIsCalmerThanTheSteps) {
  std::vector<StepRecord> records;
  for (int step = 1; step <= 400; ++step) records.push_back(record(step, step % 2 == 0 ? 2 : 3));
  const std::vector<double> smoothed = heights(loss_curve_svg(records, ""), 1);
  const auto [low, high] = std::minmax_element(smoothed.begin() + 20, smoothed.end());
  EXPECT_LT(*high - *low, 13) << "of 236 between the steps";
}

TEST(LossCurve, IsAPictureWithOneStepOrNone) {
  EXPECT_EQ(loss_curve_svg({}, "").find("nan"), std::string::npos);
  EXPECT_EQ(loss_curve_svg({record(1, 2)}, "").find("nan"), std::string::npos);
}

}  // namespace
}  // namespace llama
