-- Places of the tokens of a reply at which a constraint left no choice, so that they never train: little-endian words of
-- four bytes. Nothing stands for none, which is what is known of every reply before this.
ALTER TABLE replies ADD COLUMN forced BLOB;
