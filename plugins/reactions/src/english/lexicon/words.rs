//! Single words of praise and blame, by weight.

#[rustfmt::skip] // one line for many words
pub(super) const PRAISE: &[(f32, &str)] = &[
    (1.5, "\
        perfect excellent awesome amazing brilliant fantastic wonderful superb outstanding flawless \
        lgtm"),
    (1.3, "\
        lovely splendid stellar spectacular phenomenal terrific fabulous magnificent marvelous \
        marvellous"),
    (1.2, "\
        great beautiful impressive incredible helpful delightful bravo kudos fab spotless insightful \
        bingo approved adorable gorgeous"),
    (1.0, "\
        thanks thx thnx thankyou ty tysm cheers appreciated appreciate grateful perfectly nice cool \
        neat beautifully useful ideal correct yay hooray emojiup noice goated charming thoughtful \
        solved pleased satisfied gracias merci danke cute hilarious clever"),
    (0.9, "\
        good works worked smart"),
    (0.8, "\
        sweet clear fine agreed wow love dope solid understood golden nicely funny yum"),
    (0.6, "\
        ta yeah yes yep yup gold"),
    (0.4, "\
        okay ok ooh"),
    (0.3, "\
        right sick"),
    (0.2, "\
        w"),
];

#[rustfmt::skip] // one line for many words
pub(super) const BLAME: &[(f32, &str)] = &[
    (1.5, "\
        terrible awful horrible useless worthless rubbish garbage unacceptable bullshit"),
    (1.4, "\
        worst"),
    (1.3, "\
        unhelpful nonsense disappointing disappointed unreadable unsatisfactory sucks overformatted"),
    (1.2, "\
        incorrect sloppy wtf pointless irrelevant hideous inaccurate crap crappy trash hate hated \
        robotic condescending emojidown misleading offensive insulting frustrating worse \
        unprofessional hurtful discourages demotivates hallucination hallucinating"),
    (1.1, "\
        annoying ridiculous ugly confusing unclear incomplete mediocre dislike overkill overdone \
        unnatural impersonal discouraging offended insulted discouraged embarrassing clunky \
        ineffective"),
    (1.0, "\
        wrong bad stupid dumb lazy meh ugh ew eww nope lame bs broken cringe distracting discourage \
        demotivate scares hurts awkward childish nah"),
    (0.9, "\
        tiring tedious hurt weird crush crashed crashes"),
    (0.8, "\
        fail failed fails broke strange silly unnecessary"),
];
