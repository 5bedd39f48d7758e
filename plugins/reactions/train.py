#!/usr/bin/env python3
"""Makes src/model/weights.bin, the weights of the model of English reactions.

    REACTIONS_FEATURES=/tmp/features.jsonl cargo test -p reactions training::features -- --ignored
    python3 plugins/reactions/train.py /tmp/features.jsonl

Needs scikit-learn. Items of `wild.jsonl` in the unseen half are not trained with: they are printed as a measure."""

import collections
import json
import pathlib
import sys

import scipy.sparse
from sklearn.feature_extraction import DictVectorizer
from sklearn.linear_model import LogisticRegression

# The same as in src/model/weights.rs.
UNIT, FULL, RECORDS = 48, 40, 13_000
# Labelled items count more than phrases, whose context was drawn.
ITEM = 2
LABELS = [-1, 0, 1]


def hash_of(name: str) -> int:
    value = 0x811C9DC5
    for byte in name.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return (value ^ value >> 24) & 0xFFFFFF


def is_unseen(example: dict) -> bool:
    return example["id"].startswith("wild") and example["unseen"]


def matrix(vectorizer, examples):
    rows = vectorizer.transform([dict.fromkeys(e["features"], 1.0) for e in examples])
    known = rows.sum(axis=1).A1 if hasattr(rows.sum(axis=1), "A1") else rows.sum(axis=1)
    scale = [min(1.0, (FULL / n) ** 0.5) if n else 1.0 for n in known]
    return scipy.sparse.diags(scale) @ rows


def main() -> None:
    examples = [json.loads(line) for line in open(sys.argv[1])]
    examples = [example for example in examples if example["features"]]
    trained = [example for example in examples if not is_unseen(example)]
    counts = collections.Counter(f for e in trained for f in set(e["features"]))
    vectorizer = DictVectorizer(sort=True)
    vectorizer.fit([{f: 1.0 for f in e["features"] if counts[f] > 1} for e in trained])
    weight = [1 if e["id"].startswith("phrase") else ITEM for e in trained]
    model = LogisticRegression(C=1.0, max_iter=400, fit_intercept=False)
    model.fit(matrix(vectorizer, trained), [e["label"] for e in trained], sample_weight=weight)
    assert list(model.classes_) == LABELS
    against, neither, accepts = model.coef_
    records = {}
    for name, at in vectorizer.vocabulary_.items():
        pair = (against[at] - neither[at], accepts[at] - neither[at])
        records.setdefault(hash_of(name), (0.0, 0.0))
        records[hash_of(name)] = tuple(a + b for a, b in zip(records[hash_of(name)], pair))
    kept = sorted(records, key=lambda h: -max(map(abs, records[h])))[:RECORDS]
    out = bytearray()
    for one in sorted(kept):
        out += one.to_bytes(3, "big")
        for value in records[one]:
            out += max(-127, min(127, round(value * UNIT))).to_bytes(1, "big", signed=True)
    (pathlib.Path(__file__).parent / "src/model/weights.bin").write_bytes(out)
    print(f"{len(trained)} examples, {len(records)} features, {len(kept)} records, {len(out)} bytes")


main()
