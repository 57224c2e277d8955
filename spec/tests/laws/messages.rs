use consonance_spec::messages::{Message, Receive, matches};
use quickcheck::quickcheck;

/// Returns messages of few ranks and tags, each with its number among its sender's.
fn messages(words: &[u8]) -> Vec<Message> {
    words.iter().map(|word| Message { from: usize::from(word % 3), tag: u64::from(word / 3 % 2) }).collect()
}

/// Returns the same messages, those of each sender in the same order, and the positions that they
/// had.
fn reordered(arrived: &[Message], first: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..arrived.len()).collect();
    places.sort_by_key(|&place| (arrived[place].from + first) % 3);
    places
}

quickcheck! {
    fn a_receive_from_a_named_sender_gets_the_same_message_in_every_order_of_arrival(
        sent: Vec<u8>, posted: Vec<u8>, first: usize
    ) -> bool {
        let arrived = messages(&sent);
        let receives: Vec<Receive> =
            messages(&posted).iter().map(|like| Receive { from: Some(like.from), tag: like.tag }).collect();
        let places = reordered(&arrived, first % 3);
        let others: Vec<Message> = places.iter().map(|&place| arrived[place]).collect();
        let found: Vec<Option<usize>> =
            matches(&others, &receives).into_iter().map(|found| found.map(|place| places[place])).collect();
        found == matches(&arrived, &receives)
    }

    fn messages_of_a_sender_and_a_tag_are_received_in_order_and_once(sent: Vec<u8>, posted: Vec<u8>) -> bool {
        let arrived = messages(&sent);
        // One receive in three takes the message of any rank.
        let receive = |(number, like): (usize, Message)| {
            Receive { from: (number % 3 > 0).then_some(like.from), tag: like.tag }
        };
        let receives: Vec<Receive> = messages(&posted).into_iter().enumerate().map(receive).collect();
        let found = matches(&arrived, &receives);
        (0..3).all(|from| (0..2).all(|tag| {
            let got: Vec<usize> = found.iter().flatten().copied()
                .filter(|&place| arrived[place] == Message { from, tag }).collect();
            let sent: Vec<usize> = (0..arrived.len()).filter(|&place| arrived[place] == Message { from, tag }).collect();
            sent.starts_with(&got)
        }))
    }

    fn as_many_receives_as_messages_get_all_of_them(sent: Vec<u8>, posted_last: bool) -> bool {
        let arrived = messages(&sent);
        let mut receives: Vec<Receive> =
            arrived.iter().map(|like| Receive { from: Some(like.from), tag: like.tag }).collect();
        if posted_last {
            receives.reverse();
        }
        matches(&arrived, &receives).iter().all(Option::is_some)
    }
}
