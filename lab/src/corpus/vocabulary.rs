//! The tokenizer of the embedded model: byte-level BPE trained on the corpus.
//!
//! A number of one or two digits is one token, the same one everywhere: the space before it is a separate token. Then
//! "12" in a question, in "12 + 7" and in "**12**" share one embedding, a sum is a table over token pairs, and a model
//! of two million parameters can learn it. Longer numbers are split into digits. Runs of `*` are separate tokens for
//! the same reason: bold is one token.
//!
//! There is no normalisation: every string decodes to the same bytes.

use std::collections::HashSet;

use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split as SplitAt, SplitPattern};
use tokenizers::{
    AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper,
    SplitDelimiterBehavior, TokenizerBuilder, TokenizerImpl,
};

use crate::corpus::recipe::Recipe;

/// Ends a document.
pub const END_OF_TEXT: &str = "<|endoftext|>";
/// Begins a message.
pub const MESSAGE_START: &str = "<|im_start|>";
/// Ends a message; the model samples it to end a reply.
pub const MESSAGE_END: &str = "<|im_end|>";

/// Tokens that are never split; those with `true` are omitted from decoded text.
const ADDED: &[(&str, bool)] = &[
    (END_OF_TEXT, true),
    (MESSAGE_START, true),
    (MESSAGE_END, true),
    ("<think>", false),
    ("</think>", false),
    ("<tool_call>", false),
    ("</tool_call>", false),
    ("<tool_response>", false),
    ("</tool_response>", false),
    ("<tools>", false),
    ("</tools>", false),
];

/// Pre-tokenizer pattern: short numbers, digits, stars, contractions, words, punctuation and spaces.
const WORDS: &str = concat!(
    r"(?<!\p{N})\p{N}{1,2}(?!\p{N})|\p{N}",
    r"| ?\*+",
    r"|'(?i:[sdmt]|ll|ve|re)",
    r"| ?\p{L}+",
    r"| ?[^\s\p{L}\p{N}*]+",
    r"|\s+(?!\S)|\s+",
);

/// Why a vocabulary is invalid.
#[derive(Debug, thiserror::Error)]
pub enum VocabularyError {
    /// The tokenizers library failed.
    #[error("the tokenizer could not be trained: {0}")]
    Train(String),
    /// The sample has too few different pairs.
    #[error(
        "the corpus sample gave {got} tokens where tokenizer.vocab = {wanted}: raise tokenizer.sample or lower tokenizer.vocab"
    )]
    TooSmall {
        /// Tokens of the trained vocabulary.
        got: usize,
        /// Tokens that the recipe requires.
        wanted: usize,
    },
    /// A short number is more than one token.
    #[error("the number {0} is not one token: raise tokenizer.vocab")]
    Number(u32),
}

type Trainable = TokenizerImpl<
    BPE,
    NormalizerWrapper,
    PreTokenizerWrapper,
    PostProcessorWrapper,
    DecoderWrapper,
>;

impl Recipe {
    /// Trains the tokenizer of this recipe and returns its `tokenizer.json`: the same bytes for the same recipe on any
    /// machine. Takes some seconds.
    ///
    /// # Errors
    /// The sample is too small for the vocabulary, or a number below 100 is not one token.
    pub fn train_tokenizer(&self) -> Result<Vec<u8>, VocabularyError> {
        let failed = |e: tokenizers::Error| VocabularyError::Train(e.to_string());
        let mut tokenizer = new_tokenizer().map_err(failed)?;
        let mut trainer = BpeTrainer::builder()
            .show_progress(false)
            .vocab_size(self.tokenizer.vocab)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect::<HashSet<_>>())
            .special_tokens(
                ADDED
                    .iter()
                    .map(|(text, special)| AddedToken::from(*text, *special))
                    .collect(),
            )
            .build();
        let texts = self
            .numbers()
            .chain((0..self.tokenizer.sample).flat_map(|index| {
                let said = self.conversation(index).messages;
                said.into_iter()
                    .map(|m| format!("{}\n{}", m.role.as_str(), m.content))
            }));
        tokenizer.train(&mut trainer, texts).map_err(failed)?;
        let got = tokenizer.get_vocab_size(true);
        if got != self.tokenizer.vocab {
            return Err(VocabularyError::TooSmall {
                got,
                wanted: self.tokenizer.vocab,
            });
        }
        if let Some(number) = (0..100_u32).find(|n| tokenizer.token_to_id(&n.to_string()).is_none())
        {
            return Err(VocabularyError::Number(number));
        }
        tokenizer
            .to_string(false)
            .map(String::into_bytes)
            .map_err(failed)
    }

    /// Every short number often enough that each becomes a token.
    fn numbers(&self) -> impl Iterator<Item = String> + Send + use<> {
        let all: Vec<String> = (0..100_u32).map(|n| n.to_string()).collect();
        std::iter::repeat_n(all.join(" "), self.tokenizer.sample as usize / 4)
    }
}

fn new_tokenizer() -> tokenizers::Result<Trainable> {
    let split = SplitAt::new(
        SplitPattern::Regex(WORDS.to_owned()),
        SplitDelimiterBehavior::Isolated,
        false,
    )?;
    let bytes = ByteLevel::new(false, false, false);
    let mut tokenizer = TokenizerBuilder::new()
        .with_model(BPE::default())
        .with_normalizer(None::<NormalizerWrapper>)
        .with_pre_tokenizer(Some(PreTokenizerWrapper::Sequence(Sequence::new(vec![
            PreTokenizerWrapper::Split(split),
            PreTokenizerWrapper::ByteLevel(bytes),
        ]))))
        .with_post_processor(None::<PostProcessorWrapper>)
        .with_decoder(Some(DecoderWrapper::ByteLevel(ByteLevel::new(
            false, false, false,
        ))))
        .build()?;
    tokenizer.with_padding(None);
    Ok(tokenizer)
}
