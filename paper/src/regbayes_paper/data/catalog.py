"""What is known of each data set: its file, its shape, its checksums, where it comes from."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["CATALOG", "Known"]


@dataclass(frozen=True)
class Known:
    """A data set that has a loader."""

    name: str  # of the file, without its suffix
    title: str
    description: str
    obtain: str  # what to do where it is not found
    shape: tuple[int, int] | None = None  # rows and inputs; None where users' versions differ
    labels: tuple[str, ...] = ()  # names of the label columns of a multi-label set
    npz_sha256: str | None = None  # of the file that results in publications were checked with
    arff_sha256: dict[str, str] = field(default_factory=dict)  # file name -> digest
    target_sha256: str | None = None  # of the labels, row by row as bytes: tells the order of the rows
    n_train: int | None = None  # the first rows are the published training part
    openml_id: int | None = None


_MULAN = (
    "Mulan distributes it as {0}-train.arff and {0}-test.arff; put both files into the folder that REGBAYES_DATA "
    "names. With a network it is downloaded from OpenML."
)

CATALOG: dict[str, Known] = {
    known.name: known
    for known in (
        Known(
            name="yeast",
            title="Yeast genes",
            description="2417 genes of yeast, 103 measurements of micro-array expression and phylogenetic profiles, "
            "14 functional groups, of which a gene has 4.24 on average. Rows 0 to 1499 are the published training "
            "part. Elisseeff and Weston (2001), A kernel method for multi-labelled classification, NIPS 14.",
            obtain=_MULAN.format("yeast"),
            shape=(2417, 103),
            labels=tuple(f"Class{i}" for i in range(1, 15)),
            npz_sha256="95b0130c20df7b78f1b08bedde42f95c354f1bf78dda6dabfe2be9cf6f61f218",
            arff_sha256={
                "yeast-train.arff": "04e317497bafdd3710a996cbecdf375efe23019dd32a534fef8373fd870ce81e",
                "yeast-test.arff": "12c2c2d84bbff103e5f66d29dad2cfa84eb736d537c434668debb96bf6a5842e",
            },
            target_sha256="50373e1f232d66205fbd6383b01562e5c09b4bf1fe7a61179fd3d6e7edafbd37",
            n_train=1500,
            openml_id=40597,
        ),
        Known(
            name="scene",
            title="Natural scenes, several labels",
            description="2407 photographs, 294 colour moments on a 7 by 7 grid, 6 labels, of which a photograph has "
            "1.07 on average. Rows 0 to 1210 are the published training part. Boutell, Luo, Shen and Brown (2004), "
            "Learning multi-label scene classification, Pattern Recognition 37.",
            obtain=_MULAN.format("scene"),
            shape=(2407, 294),
            labels=("Beach", "Sunset", "FallFoliage", "Field", "Mountain", "Urban"),
            npz_sha256="7d7bf81e6db4e6108c9794c45258aa1f40625e6b71a4a30bd262e578669c77b7",
            target_sha256="d68b5b15241527b83ab7ab0ae15e2791b3655305fec990139c614f337c8f0eaf",
            n_train=1211,
            openml_id=40595,
        ),
        Known(
            name="emotions",
            title="Emotions in music",
            description="593 songs, 72 features of rhythm and timbre, 6 emotions, of which a song has 1.87 on average. "
            "Rows 0 to 390 are the published training part. Trohidis, Tsoumakas, Kalliris and Vlahavas (2008), "
            "Multi-label classification of music into emotions, ISMIR.",
            obtain=_MULAN.format("emotions"),
            shape=(593, 72),
            labels=(
                "amazed-suprised",
                "happy-pleased",
                "relaxing-calm",
                "quiet-still",
                "sad-lonely",
                "angry-aggresive",
            ),
            npz_sha256="ed2396702b05229b6f4b143f8592805a829d773f85672a9c083220ad5167f756",
            arff_sha256={
                "emotions-train.arff": "bbe704106c79bb8fb99c1d1d2e9bde081d6a2daeb01f100862f11fd91a3c1f98",
                "emotions-test.arff": "f13d4b746b7b5c8eb484bd751d6ac463d4560dff998a93516a5c1fe35daf6c8f",
            },
            target_sha256="c997ec669a905fa29ec8c7e5452262b968d794d9b686f369bce3aeee72cc6c6f",
            n_train=391,
            openml_id=40589,
        ),
        Known(
            name="school",
            title="Exam scores in London schools",
            description="15362 pupils of 139 schools, 27 inputs about pupil and school, the exam score. The task is "
            "the school. A constant column of the original is left out. Inner London Education Authority; Bakker and "
            "Heskes (2003), Task clustering and gating for Bayesian multitask learning, JMLR 4.",
            obtain="The MALSAR package has it as data/school.mat; paper/docs/data.md has the five lines that turn it "
            "into school.npz.",
            shape=(15362, 27),
            npz_sha256="2902868027cfada9d14182e5d0a8fd56c696b1b5065dfb26b69fff921d7ca8e9",
        ),
        Known(
            name="landmine",
            title="Landmines",
            description="14820 radar images of 29 fields, 9 features, mine or not (904 are). The task is the field. "
            "Xue, Liao, Carin and Krishnapuram (2007), Multi-task learning for classification with Dirichlet process "
            "priors, JMLR 8.",
            obtain="It is published as LandmineData.mat (Duke University); paper/docs/data.md says how landmine.npz is "
            "laid out.",
            shape=(14820, 9),
            npz_sha256="4ce8c9890f1bb6631d27d18d429e9acd1363b17fa86da14a0a652e93b079a36a",
        ),
        Known(
            name="scene15",
            title="Fifteen kinds of scenes",
            description="4485 photographs of 15 kinds of scenes in three views: GIST (20 inputs), PHOG (59), LBP (40). "
            "`view_offsets` and `view_names` say which inputs belong to which. Lazebnik, Schmid and Ponce (2006), "
            "Beyond bags of features, CVPR.",
            obtain="Code for multi-view learning often has it as Scene-15.mat; paper/docs/data.md says how scene15.npz "
            "is laid out.",
            shape=(4485, 119),
            npz_sha256="00c13c2ae2b060ed32970b2eda4f4766ee17d1fb670d83651a5ddc3362b6bebc",
        ),
        Known(
            name="20newsgroups_bydate",
            title="Twenty newsgroups",
            description="18846 posts of 20 newsgroups as counts of words, split by date. Headers are removed, words "
            "are in lower case, English stop words and words in fewer than three training posts are left out.",
            obtain="With a network scikit-learn's fetch_20newsgroups brings it.",
            shape=(18846, 30815),
            npz_sha256="9686d7ed228c671c218d9f0b03974937b1dd02dd8cea48473dcbdd9ceafbd17c",
            n_train=11314,
        ),
        Known(
            name="movie_review_scale",
            title="Movie reviews with ratings",
            description="5006 reviews by four authors as counts of words, with the rating (0 to 1) and the same in "
            "three and four classes. English stop words and words in fewer than five reviews are left out. Pang and "
            "Lee (2005), Seeing stars, ACL.",
            obtain="It is made from the scale data v1.0 of Pang and Lee (Cornell University); paper/docs/data.md says "
            "how movie_review_scale.npz is laid out.",
            shape=(5006, 14856),
            npz_sha256="afb5b0e26e39646fd33ed08d5015a87e8ae4d619c214ef19e65562b7f5172ab5",
        ),
        Known(
            name="trecvid2003",
            title="TRECVID 2003 video shots",
            description="1078 shots of broadcast news in 5 classes: 1894 binary text features and 165 colour features. "
            "Xing, Yan and Hauptmann (2005), Mining associated text and images with dual-wing harmoniums, UAI.",
            obtain="This set is not public, so nothing can be downloaded. If you have it, save it as trecvid2003.npz "
            "(arrays X and y; optionally train_idx, test_idx, view_offsets, view_names, class_names) or as "
            "trecvid2003.arff with the class as its last attribute.",
        ),
        Known(
            name="flickr",
            title="Flickr animals",
            description="3411 pictures of 13 animals with 634 features and 500 SIFT counts. Chen, Zhu and Xing (2010), "
            "Predictive subspace learning for multi-view data, NIPS 23.",
            obtain="This version of the set is not public, so nothing can be downloaded. If you have it, save it as "
            "flickr.npz (arrays X and y; optionally train_idx, test_idx, view_offsets, view_names, class_names) or as "
            "flickr.arff with the class as its last attribute.",
        ),
    )
}
