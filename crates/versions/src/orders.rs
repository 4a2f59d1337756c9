//! Key orders by name: the manifest names the order of each family, and a program brings those that it made itself.

use kingtide_base::KeyOrder;
use kingtide_base::key::unknown_order;

/// The key orders that a program knows: those of Kingtide, and its own.
#[derive(Clone, Debug, Default)]
pub struct KeyOrders(Vec<KeyOrder>);

impl KeyOrders {
    /// Those of Kingtide and these. Of two with one name the first counts; those of Kingtide come before all others.
    pub fn with(orders: impl IntoIterator<Item = KeyOrder>) -> KeyOrders {
        KeyOrders(orders.into_iter().filter(|order| matches!(order, KeyOrder::Custom(_))).collect())
    }

    /// The order of that name; `None` if the program was not given it.
    pub fn named(&self, name: &str) -> Option<KeyOrder> {
        KeyOrder::builtin(name).or_else(|| self.0.iter().find(|order| order.name() == name).cloned())
    }
}

/// Stands for an order that was not given, while edits are added up. No key of the family is looked at meanwhile but those
/// that the edits name, and where these go does not matter: the family is dropped by a later edit, or refused, or verified as far as no order is
/// needed.
pub(crate) fn unknown(name: String) -> KeyOrder {
    KeyOrder::Custom(unknown_order(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_found_by_its_name() {
        let own = [unknown("mine".to_owned()), KeyOrder::Reverse, unknown(KeyOrder::U64.name().to_owned())];
        let orders = KeyOrders::with(own);
        let named = |name: &str| orders.named(name);
        assert!(matches!(named("mine"), Some(KeyOrder::Custom(order)) if order.name() == "mine"));
        assert!(matches!(named(KeyOrder::Reverse.name()), Some(KeyOrder::Reverse)));
        assert!(
            matches!(named(KeyOrder::U64.name()), Some(KeyOrder::U64)),
            "a program cannot replace a built-in order"
        );
        assert!(named("another").is_none() && KeyOrders::default().named("mine").is_none());
    }
}
