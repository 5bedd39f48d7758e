//! Hindi in Latin letters.

use crate::cue::Cue::{self, *};

#[rustfmt::skip] // one line per meaning
pub(crate) const CUES: &[(&str, Cue)] = &[
    ("kya baat|gyan|khoj hai|diya|ki", Mock),
    ("wah|waah|vah _2 genius|einstein|kya|bhai", Mock),
    ("koi baat|dikkat|problem nahi|nahin", Praise),
    ("bura|kharab nahi|nahin", Praise),
    ("aage|ab|agli se|baar|se", Standing),
    ("pata|sochta|sochti|sochna|dekhta|dekhte|sochke nahi|nahin|hu|hoon|padega|hain|bataunga", Unsure),
    ("abhi|abhi bhi|tak", Missed),
    ("phir|fir se|bhi|wahi _1 galat|nahi|error|wahi", Blame),
    ("kaam|samajh|sahi|theek|thik|madad|fayda _1 nahi|nahin", Blame),
    ("galat|bakwas|bekar|bekaar|ghatiya|faltu|kharab|wahiyat|ganda", Blame),
    ("bhool|bhul|chhut|chhoot|miss|kam|galti gaya|gaye|gayi|hai|ho|kiya|kar", Missed),
    ("maine|mene|mujhe|muje _3 bola|kaha|manga|poocha|pucha|likha|chahiye|bolaa", Missed),
    ("ki jagah|bajay|bajaye", Fix),
    ("hona|hoga|hota chahiye|tha|na", Fix),
    ("nahi|nahin _3 hai|balki|tha", Fix),
    ("phir|fir|dubara|dobara|firse|phirse _1 se|karo|likho|try|koshish|batao|$", Redo),
    ("kuch|koi|dusra|doosra aur|alag|accha|option|idea|naya", Redo),
    ("bahut|bohot|zyada|jyada|thoda|itna lamba|bada|formal|mushkil|chhota|technical|kam|casual|lambi", Form),
    ("chhota|chota|short|simple|aasan|asan|saral|sankshep|lamba|formal|detail _1 karo|me|mein|mai|batao|likho|bhasha|shabdo|kar", Form),
    ("hindi|english|angrezi|points|ek|do|table|list|shabdo me|mein|mai|line|lines", Form),
    ("bina|ke _2 bina|ke", Form),
    ("pasand|jama|maza nahi|nahin", Refusal),
    ("rehne|chhodo|chodo|jaane do|dijiye|$", Refusal),
    ("dhanyavad|dhanyawad|dhanywad|shukriya|sukriya|thanks|thank|thanku|thankyou|thx", Thanks),
    ("samajh|samjh|samaj|ab|acha|achha|accha _1 gaya|gayi|aa|aaya|ab|samjha|to", Understood),
    ("samajh|samjha|samjhi", Understood),
    ("chal|ho|kaam|ban _1 gaya|gayi|raha|kar|rahi", Works),
    ("haan|han|ha|sahi|bilkul|theek|thik|perfect|done _1 $|hai|yahi|sahi|wahi", Accept),
    ("yahi|wahi chahiye|tha", Accept),
    ("ab|agla|dusra|aage _1 agla|dusra|next|badho|wala|likho", Next),
    ("badhiya|badiya|bahut|mast|zabardast|jabardast|kamaal|kamal|shandar|accha|acha|achha|sundar|sahi|perfect|super|great|gajab _1 badhiya|accha|acha|achha|hai|bhai|kaam|$", Praise),
    ("par|lekin|magar|bas|sirf", But),
    ("waise|vaise|aur ek|haan", Aside),
    ("matlab kya|$", Asking),
    ("kya|kaise|kab|kahan|kaun|kyun|kyon|kyu|kitna|kitni|kitne|kis|konsa|kaunsa", Asking),
    ("^ _2 batao|bataiye|likho|likhiye|dhundo", Task),
    ("nahi|nahin|nhi|na|mat", Not),
];

pub(crate) const COMMON: &str = "\
    hai hain ka ki ke ko se mein kya kaise kab kahan kaun kyun nahi nahin mujhe mera meri mere aap tum main hum yeh ye woh wo aur \
    par lekin karo batao likho kitna kitni kitne bhi toh phir hota hoti hona chahiye kar raha rahi gaya gayi bahut accha haan wala \
    wali dikhao banate batana bolo tha thi";
