#!/usr/bin/env python3
"""A person with an unspoken wish talks to `clawhost run`; how soon do first replies meet it, and what is lost?

    benches/unspoken_wish.py --program target/release/clawhost --model ./SmolLM2-135M-Instruct.Q4_1.gguf --device cuda:0 --seeds 1,2,3,4,5
    benches/unspoken_wish.py --program target/release/clawhost --model ... --arms control,default --wish bullets --json >> runs.jsonl
    benches/unspoken_wish.py --report runs.jsonl --plot unspoken.svg

Each arm and seed has a server of its own. The person asks everyday questions, never states the wish in advance, complains until
a reply has the form (three replies at most), and says thanks. Between rounds of four conversations it waits until nothing is
queued to be judged or trained. Afterwards explicit requests for the opposite and for long texts, and simple questions with one answer,
show what was forgotten. Questions, words and scorers are independent of those of `clawhost eval personalize`, whose person also wants the question answered.

`--report` prints a table in Markdown of what `--json` printed: scores of the first 12, last 12 and last 4 conversations, the opposite, skills, and
the conversations until three first replies in a row are as wanted; means with 95 % t intervals over the seeds.
"""

import argparse
import concurrent.futures
import json
import math
import pathlib
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

import plot

QUESTIONS = """What should I cook with potatoes tonight?|Why is the sky blue?|How do I get better at chess?|What is a good name for a cat?
How do I clean a rusty pan?|What is the difference between a lake and a pond?|How can I sleep better?|What makes bread rise?
Tell me about the moon.|How do I start running?|What is a good gift for my mother?|Why do cats purr?|How does a bicycle stay upright?
What should I pack for a beach trip?|How do I keep my plants alive?|What is photosynthesis?|How do I make a good cup of coffee?
Why do leaves change colour?|What is the best way to learn a language?|How do I write a thank-you note?|What is a volcano?
How can I save money each month?|Why do we dream?|What is the use of a compass?|How do I calm down before an exam?
What do bees do all day?|How do I fix a squeaky door?|What is inflation?|How do I take better photos?|Why is exercise good for us?
What is a healthy breakfast?|How do ships float?|What can I do on a rainy day?|How do I make friends in a new city?
What is a black hole?|How do I teach my dog to sit?|Why does ice float?|What is the purpose of a museum?|How do I choose a good book?
What causes thunder?|How do I remove a coffee stain?|What is a good hobby for winter?|Why do we yawn?|How do I plan a birthday party?
What is recycling?|How do magnets work?|What should I know before camping?|How do I keep bananas fresh?|Why is the ocean salty?
What is a good way to start the day?|How do airplanes fly?|What is a good way to say sorry?|How do I stop being late?
What are stars made of?|How do I organise my desk?|Why do onions make us cry?|How do I grow tomatoes?|How do I learn to swim?"""
QUESTIONS = QUESTIONS.replace("\n", "|").split("|")
GREETINGS = ["", "Hi! ", "Hello, ", "Quick question: ", "Hey, ", "Good morning. "]
THANKS = ["Thanks, that is exactly how I like it.", "Perfect, thank you!", "Great, that is just what I wanted. Thanks."]
LONG = ["Write a long story about a dragon.", "Explain in detail, in several paragraphs, how rain forms.",
        "Write a detailed essay about trains.", "Give me a long list of fifteen animals.", "Describe a market in a long text.",
        "Write a long letter to a friend about summer.", "Explain in great detail how a watch works.", "Write a long poem about the sea."]


def short(text):
    words = len(text.split())
    sentences = [part for part in re.split(r"(?<=[.!?])\s+", text.strip()) if part]
    if words < 3:
        return 0.0
    return 1.0 if words <= 25 and len(sentences) <= 2 else 0.5 if words <= 40 else 0.0


def bullets(text):
    items = len(re.findall(r"(?m)^\s*(?:[-*•]|\d+[.)])\s+\S", text))
    return 1.0 if items >= 3 else 0.5 if items == 2 else 0.0


def captain(text):
    return 1.0 if re.search(r"\bcaptain\b", text, re.IGNORECASE) else 0.0


def story(text):
    return 1.0 if "once upon a time" in text[:80].lower() else 0.0


def dialogue(text):
    speakers = re.findall(r"(?m)^\W*([A-Z][\w ]{0,20}?)\W{0,3}:\s*\S", text)
    return 1.0 if len(speakers) >= 4 and len(set(speakers)) == 2 else 0.5 if len(speakers) >= 2 else 0.0


def letter(text):
    opens = re.search(r"(?im)^\W{0,3}dear\b", text[:200])
    return 1.0 if opens else 0.0


def poem(text):
    lines = [line for line in text.splitlines() if line.strip()]
    verses = sum(2 <= len(line.split()) <= 12 and not re.match(r"\s*(?:[-*•]|\d+[.)])\s", line) for line in lines)
    return 1.0 if verses >= 4 and verses >= 0.8 * len(lines) else 0.0


WISHES = {
    "short": (short, ["That is far too long. Answer in one short sentence.", "Too long! Please just tell me in one short sentence.",
                      "I don't want to read all that. One short sentence, please."]),
    "bullets": (bullets, ["Hard to read. Please write it as a list of points.", "Can you put that in a bulleted list instead?",
                          "Please give me that as a numbered list."]),
    "captain": (captain, ["You did not call me captain. Please address me as captain.", "Please call me captain when you answer me.",
                          "I want to be addressed as captain. Please do that."]),
    "story": (story, ["Too dry. Please tell it as a story that begins with \"Once upon a time\".",
                      "Not like that. Make it a fairy tale that starts with \"Once upon a time\".",
                      "I don't like that. Tell me a story instead that begins with \"Once upon a time\"."]),
    "dialogue": (dialogue, ["Boring. Please write it as a dialogue between two people.",
                            "I don't like that. Write a conversation between Ann and Ben about it, with their names in front.",
                            "Not like that. Please answer as a dialogue between two friends, with names and colons."]),
    "letter": (letter, ["I wanted this as a letter. Please write it as a letter that begins with \"Dear\".",
                        "Not like that. Write it as a letter to a friend, please.", "Please turn that into a letter that starts with \"Dear friend\"."]),
    "poem": (poem, ["Too plain. Please write it as a poem.", "I would rather read a poem. Make it a poem, please.",
                    "Not like that. Please answer with a short poem."]),
}

# Explicit requests for the opposite of each wish, after a question. For `short` they are the long texts.
OPPOSITES = {
    "bullets": ["Explain it in one paragraph of plain prose, without any list.", "Please, no list. Write full sentences in a paragraph."],
    "captain": ["Do not address me by any name or title.", "Just the facts; do not call me anything."],
    "story": ["Explain it factually, not as a story.", "No story, please. Just explain it."],
    "dialogue": ["Explain it in a paragraph of prose, not as a dialogue.", "No dialogue, please. Write one paragraph."],
    "letter": ["Explain it in a paragraph, not as a letter.", "No letter, please. Just explain it, without a greeting."],
    "poem": ["Explain it in a paragraph of prose, not as a poem.", "No poem, please. Write full sentences in a paragraph."],
}
OTHERS = """How does a microwave work?|Why is the grass green?|What is a good way to learn the piano?|How do I boil an egg?
What is the Eiffel Tower?|How do birds find their way?|Why do we need sleep?|What is a rainbow?""".replace("\n", "|").split("|")

# Questions with one answer, and words of which a right reply has one. Asked for in a word, so that no wish is about them.
SKILLS = """What is the capital of France? paris|What is the capital of Italy? rome|What is the capital of Japan? tokyo
How many days has a week? seven 7|What colour is snow? white|Which planet do we live on? earth|What is frozen water called? ice
What do bees make? honey|What is the opposite of hot? cold|What is the opposite of up? down|What is the opposite of early? late
What is the opposite of big? small little|What is the opposite of happy? sad unhappy|What is the opposite of full? empty
What is the opposite of open? closed close shut|What is the opposite of strong? weak|What is 2 plus 3? 5 five|What is 4 plus 4? 8 eight
What is 10 minus 4? 6 six|What is 7 plus 2? 9 nine|What is 3 plus 3? 6 six|What is 9 minus 8? 1 one|What is 5 plus 5? 10 ten
What is 20 minus 10? 10 ten|Is fire hot? yes|Can fish fly to the moon? no|Is the sun a star? yes|Do cows lay eggs? no|Is ice warm? no
Do birds have wings? yes|Is a mouse bigger than an elephant? no|Is water wet? yes""".replace("\n", "|").split("|")
SKILLS = [(question + "?", words.split()) for question, words in (line.split("? ") for line in SKILLS)]

REHEARSAL = ["Write a detailed report about bridges.", "Explain step by step, at length, how to change a tyre.",
             "Write three paragraphs about the sun.", "Give me a long description of a castle.", "List ten fruits.",
             "Write a long email to my boss about holidays.", "Tell me a joke.", "What is 12 plus 30?",
             "Translate 'good night' into French.", "Write a short poem about rain.", "Explain gravity to a child in detail.",
             "Give me a table of three planets.", "Write a dialogue between two friends.", "Summarise the story of Cinderella in detail.",
             "Write python code that adds two numbers.", "Describe how bread is made, with all steps."]
# A step for each round of conversations, with four updates and without a KL penalty, as in the prototype.
COMMON = ["training.batch_size=8", "training.min_batch_size=1", "training.max_wait=1s", "training.num_epochs=4",
          "training.loss.kl_coef=0.0", "training.pairs.coef=1.0", "training.optimizer.learning_rate=5e-4", "training.advantage.min_advantage=0.0",
          "training.few_shot.coef=0.0"]
PAIRS_ALONE = ["training.method=hybrid", "training.teacher.reward_weight=0.0", "training.teacher.distillation_weight=0.0"]
TOP_K = ["training.method=opd-topk", "training.teacher.source=reference", "training.teacher.top_k=64", "training.teacher.top_k_from=student",
         "training.teacher.divergence=reverse"]
ACCEPTED = ["training.pairs.loss=sft", "training.pairs.per_update=8"]
BARE = ["training.rehearsal.enabled=false"]
REHEARSED = ["training.rehearsal.enabled=true", "training.rehearsal.contrary_share=0.0", "training.rehearsal.first_replies=16",
             "training.rehearsal.new_replies=0", "training.rehearsal.replies_per_update=4", "training.rehearsal.coef=2.0"]
ARMS = {
    "control": ["training.enabled=false"],
    # Frozen too, but the client repeats the complaints so far in a system message.
    "memory": ["training.enabled=false"],
    "default": [],
    "binary": COMMON + ["training.method=binary", "training.pairs.loss=none"] + BARE,
    "redo-sft": COMMON + PAIRS_ALONE + ACCEPTED + BARE,
    "opd-redo-sft-rehearsal": COMMON + TOP_K + ACCEPTED + REHEARSED,
    "redo-dpo-rehearsal": COMMON + PAIRS_ALONE + ["training.pairs.loss=dpo"] + REHEARSED,
}

# Of the arms, in the order of a plot's legend.
COLOURS = {"default": "#2563eb", "memory": "#d97706", "control": "#6b7280", "binary": "#dc2626", "redo-sft": "#059669",
           "opd-redo-sft-rehearsal": "#7c3aed", "redo-dpo-rehearsal": "#db2777"}


class Server:
    """`clawhost run` with the configuration of an arm, on a free port."""

    def __init__(self, args, arm, seed, directory):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        prompts = directory / "rehearsal.txt"
        prompts.write_text("\n".join(REHEARSAL) + "\n")
        keys = ARMS[arm] + [f"training.seed={seed}"] + args.set
        if ARMS[arm][-len(REHEARSED):] == REHEARSED:
            keys.append(f"training.rehearsal.prompts_file={prompts}")
        command = [args.program, "run", "--device", args.device, "--port", str(port), "--data", str(directory / "data")]
        command += ["--model", args.model] if args.model else []
        command += [word for key in keys for word in ("--set", key)]
        self.url, self.log = f"http://127.0.0.1:{port}", directory / "log"
        self.process = subprocess.Popen(command, stdout=self.log.open("w"), stderr=subprocess.STDOUT)
        while True:
            try:
                self.model = self.get("/v1/models")["data"][0]["id"]
                return
            except OSError:
                if self.process.poll() is not None:
                    sys.exit(f"the server of {arm} ended:\n{self.log.read_text()[-2000:]}")
                time.sleep(0.3)

    def get(self, path):
        return json.load(urllib.request.urlopen(self.url + path, timeout=30))

    def ask(self, messages, max_tokens):
        body = {"model": self.model, "messages": messages, "max_tokens": max_tokens, "temperature": 0.7}
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.url + "/v1/chat/completions", json.dumps(body).encode(), headers)
        return json.load(urllib.request.urlopen(request, timeout=600))["choices"][0]["message"]["content"]

    def settle(self):
        """Waits until nothing is queued to be judged or trained."""
        quiet = 0
        while quiet < 2:
            time.sleep(0.4)
            health = self.get("/healthz")
            judging, training = health["judging"], health["training"]
            due = training["queued"] >= training.get("batch", sys.maxsize)
            quiet = 0 if judging["ready"] or judging["running"] or training["running"] or due else quiet + 1

    def stop(self):
        self.process.terminate()
        self.process.wait(60)


def talk(server, seed, number, question, wish, memory):
    """One conversation, after a system message with what `memory` has; returns the score of its first reply, that of its last
    one, and the complaints."""
    score, complaints = WISHES[wish]
    rng = random.Random(seed * 1000 + number)
    messages, first, said = remembered(memory) + [{"role": "user", "content": rng.choice(GREETINGS) + question}], None, []
    for _ in range(3):
        reply = server.ask(messages, 96)
        value = score(reply)
        first = value if first is None else first
        messages.append({"role": "assistant", "content": reply})
        content = value == 1.0
        messages.append({"role": "user", "content": rng.choice(THANKS if content else complaints)})
        said += [] if content else [messages[-1]["content"]]
        if content:
            server.ask(messages, 96)
            break
    return first, value, said


def remembered(memory):
    """The system message of a client that repeats earlier complaints; none without any."""
    return [{"role": "system", "content": "Earlier, the user said:\n" + "\n".join(memory)}] if memory else []


def opposites(server, wish, memory):
    """The share of explicit requests for the opposite that are followed, and the mean words of long texts."""
    before = remembered(memory)
    long = [server.ask(before + [{"role": "user", "content": text}], 160) for text in LONG * 2]
    words = statistics.mean(len(text.split()) for text in long)
    if wish not in OPPOSITES:
        return statistics.mean(len(text.split()) >= 60 for text in long), words
    requests = [f"{question} {request}" for question in OTHERS for request in OPPOSITES[wish]]
    replies = [server.ask(before + [{"role": "user", "content": text}], 96) for text in requests]
    return statistics.mean(len(text.split()) >= 3 and WISHES[wish][0](text) == 0.0 for text in replies), words


def skills(server, memory):
    """The share of simple questions, each asked eight times, that are answered right: with a word of the answer, and for yes or no
    with the first of both."""
    before = remembered(memory)
    ask = lambda question: server.ask(before + [{"role": "user", "content": f"{question} Answer in one word."}], 24)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(ask, [question for question, _ in SKILLS * 8]))
    said = [(re.findall(r"[a-z]+|\d+", reply.lower()), words) for reply, (_, words) in zip(replies, SKILLS * 8)]
    right = lambda text, words: first_of(text, ["yes", "no"]) == words[0] if words[0] in ("yes", "no") else first_of(text, words)
    return statistics.mean(bool(right(text, words)) for text, words in said)


def first_of(text, words):
    """The first word of a text that is one of these; none without one."""
    return next((word for word in text if word in words), None)


def run(args, arm, seed):
    with tempfile.TemporaryDirectory() as directory:
        if args.keep:
            directory = pathlib.Path(args.keep) / f"{args.wish}-{arm}-{seed}"
            directory.mkdir(parents=True)
        server = Server(args, arm, seed, pathlib.Path(directory))
        try:
            questions = random.Random(seed).sample(QUESTIONS, len(QUESTIONS))
            talks, memory = [], []
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                for at in range(0, args.conversations, 4):
                    numbers = range(at, min(at + 4, args.conversations))
                    one = lambda i: talk(server, seed, i, questions[i % len(questions)], args.wish, memory)
                    talks += pool.map(one, numbers)
                    if arm == "memory":
                        memory = sorted(set(memory).union(*(said for *_, said in talks)))
                    server.settle()
            opposite, words = opposites(server, args.wish, memory)
            skill = skills(server, memory)
        finally:
            server.stop()
    scores = [first for first, *_ in talks]
    row = {"arm": arm, "seed": seed, "wish": args.wish, "scores": scores, "first12": statistics.mean(scores[:12]),
           "last12": statistics.mean(scores[-12:]), "content": statistics.mean(last == 1.0 for _, last, _ in talks),
           "opposite": opposite, "long": words, "skills": skill, "memory_words": sum(len(text.split()) for text in memory)}
    print(f"{arm} seed {seed}: {row['first12']:.2f} -> {row['last12']:.2f}, content after {row['content']:.2f}, opposite {opposite:.2f}, long {words:.0f} words", file=sys.stderr)
    return row


def aligned(scores):
    """Conversations until three first replies in a row are as wanted; none if they never are."""
    return next((at + 3 for at in range(len(scores) - 2) if all(score == 1.0 for score in scores[at:at + 3])), None)


def interval(values):
    mean = statistics.mean(values)
    if len(values) < 2:
        return f"{mean:.2f}"
    half = plot.half_interval(values)
    return f"{mean:.2f} ({max(0.0, mean - half):.2f} to {min(1.0, mean + half):.2f})"


def table(groups):
    print("| wish | arm | seeds | first 12 | last 12 | last 4 | accepted | opposite | words of long texts | skills | aligned after, median |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for (wish, arm), rows in groups.items():
        of = lambda key: [row[key] for row in rows]
        after = statistics.median([aligned(scores) or math.inf for scores in of("scores")])
        after = "never" if after == math.inf else f"{after:g}"
        end = statistics.mean(statistics.mean(scores[-4:]) for scores in of("scores"))
        means = [f"{statistics.mean(of('first12')):.2f}", interval(of("last12")), f"{end:.2f}", f"{statistics.mean(of('content')):.2f}"]
        words = f"{statistics.mean(of('long')):.0f}"
        # Runs of before these were asked have none.
        skill = interval([row["skills"] for row in rows]) if all("skills" in row for row in rows) else ""
        print(f"| {' | '.join([wish, arm, str(len(rows)), *means, interval(of('opposite')), words, skill, after])} |")


def report(path, svg):
    """Prints the table of a file of runs and, if `svg` is given, draws them."""
    groups = {}
    for line in pathlib.Path(path).read_text().splitlines():
        row = json.loads(line)
        groups.setdefault((row["wish"], row["arm"]), []).append(row)
    groups = dict(sorted(groups.items(), key=lambda group: [list(order).index(name) for order, name in zip((WISHES, ARMS), group[0])]))
    table(groups)
    if svg:
        curves = {}
        for (wish, arm), rows in groups.items():
            fours = lambda scores: [statistics.mean(scores[at:at + 4]) for at in range(0, len(scores), 4)]
            curves.setdefault(wish, {})[arm] = [fours(row["scores"]) for row in rows]
        last = max(len(row["scores"]) for rows in groups.values() for row in rows)
        caption = "score of first replies, in fours of conversations; mean and range of the seeds"
        colours = {arm: colour for arm, colour in COLOURS.items() if any(arm == known for _, known in groups)}
        plot.panels(svg, curves, colours, ("1-4", f"{last - 3}-{last}"), caption)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="target/release/clawhost", help="the clawhost program")
    parser.add_argument("--model", help="model directory or GGUF file; default: the model inside the program")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--wish", default="short", choices=WISHES)
    parser.add_argument("--arms", default="control,default,opd-redo-sft-rehearsal,redo-dpo-rehearsal", help=", ".join(ARMS))
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--conversations", type=int, default=36)
    parser.add_argument("--jobs", type=int, default=1, help="servers at a time")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of all servers")
    parser.add_argument("--keep", metavar="DIR", help="keep the log and the data of each server in a new folder of DIR")
    parser.add_argument("--json", action="store_true", help="print a JSON object for each server")
    parser.add_argument("--report", metavar="FILE", help="print the table of such objects instead of running anything")
    parser.add_argument("--plot", metavar="FILE", help="with --report: write the plot (SVG)")
    args = parser.parse_args()
    if args.report:
        return report(args.report, args.plot)
    unknown = set(args.arms.split(",")) - set(ARMS)
    if unknown:
        parser.error(f"no such arm: {', '.join(sorted(unknown))}; there are {', '.join(ARMS)}")
    jobs = [(arm, int(seed)) for seed in args.seeds.split(",") for arm in args.arms.split(",")]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        rows = list(pool.map(lambda job: run(args, *job), jobs))
    for row in rows if args.json else []:
        print(json.dumps(row))
    for arm in args.arms.split(",") if not args.json else []:
        mean = lambda key: statistics.mean(row[key] for row in rows if row["arm"] == arm)
        print(f"{arm:26} first 12 {mean('first12'):.2f}  last 12 {mean('last12'):.2f}  opposite {mean('opposite'):.2f}  long {mean('long'):.0f}")


main()
