//! The small worlds the embedded policy is pretrained on, and its tokenizer
