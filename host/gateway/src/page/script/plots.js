// The plots of a snapshot, the same as in `plots.rs`.

function plots({ rewards, steps, releases }) {
  const numbered = (values) => values.map((value, index) => [index + 1, value]);
  const all = [{
    title: "Rewards of judged replies", x: "reply", empty: "No verdicts yet.",
    series: [
      { name: "reward", shape: "dots", points: numbered(rewards) },
      { name: "mean", shape: "line", points: numbered(runningMean(rewards)) },
    ],
  }];
  if (steps) {
    const byStep = (title, names) => ({
      title, x: "step", empty: "No training steps yet.",
      series: Object.entries(names).map(([name, field]) => ({
        name, shape: "line",
        points: steps.filter((step) => step[field] !== null).map((step) => [step.id, step[field]]),
      })),
    });
    const versions = releases.map((release) => [release.ms, release.version]);
    if (versions.length > 0) versions.push([now(), versions.at(-1)[1]]);
    all.push(
      byStep("Mean reward", { mean: "reward_mean" }),
      byStep("KL divergence", { reference: "kl_reference", old: "kl_old" }),
      byStep("Loss", { last: "loss_last", first: "loss_first" }),
      byStep("Gradient norm", { norm: "gradient_norm" }),
      {
        title: "Active adapter version", x: "time", empty: "The base model is active.",
        series: [{ name: "version", shape: "steps", points: versions }],
      });
  }
  return fragment(all.map(drawPlot));
}
